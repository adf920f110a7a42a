# Writes a workbook with openpyxl: its sheets come as JSON on standard input, its bytes go to standard output.
import datetime
import io
import json
import sys

import openpyxl
from openpyxl.utils.datetime import CALENDAR_MAC_1904


def value_of(cell):
    if not isinstance(cell, dict):
        return cell
    if "date" in cell:
        return datetime.datetime.fromisoformat(cell["date"])
    if "time" in cell:
        return datetime.time.fromisoformat(cell["time"])
    if "hours" in cell:
        return datetime.timedelta(hours=cell["hours"])
    return cell["value"]


spec = json.load(sys.stdin)
book = openpyxl.Workbook()
book.remove(book.active)
if spec.get("is1904"):
    book.epoch = CALENDAR_MAC_1904
for sheet in spec["sheets"]:
    page = book.create_sheet(sheet["name"])
    for number, row in enumerate(sheet["rows"], 1):
        for column, cell in enumerate(row, 1):
            if cell is None:
                continue
            target = page.cell(number, column)
            target.value = value_of(cell)
            if isinstance(cell, dict) and "format" in cell:
                target.number_format = cell["format"]
stream = io.BytesIO()
book.save(stream)
sys.stdout.buffer.write(stream.getvalue())
