// A session is renamed again and again while clients write children of a section and others read.

import { setTimeout as sleep } from 'node:timers/promises'
import { type Document, isPawlError, type Key, type Pawl } from 'pawl'
import { attendance, attendanceEvent, type SectionKey, session, students } from './glendale.ts'

interface Load {
  readonly session: Document
  readonly section: Document
  /** A child of the section that is read. */
  readonly child: Document
  /** Of the session, the first is the present one. */
  readonly names: readonly string[]
  readonly clients: number
  readonly eventsPerClient: number
}

/** Returns how often a reader saw a name that was no longer, or not yet, that of the session. */
export async function renameUnderLoad({ documents }: Pawl, load: Load): Promise<{ reads: number; wrong: number }> {
  const { names, clients, eventsPerClient } = load
  let [started, answered, isOver] = [0, 0, false]
  let [reads, wrong] = [0, 0]

  async function rename(): Promise<void> {
    for (const name of names.slice(1)) {
      started++
      await documents.put('Session', load.session.uuid, session(name))
      answered++
      await sleep(20)
    }
  }

  /** A client that is told that a reference does not exist reads the section's key again. */
  async function write(client: number): Promise<void> {
    let { key } = load.section
    for (let n = 1; n <= eventsPerClient; ) {
      const day = `2026-10-${String(n).padStart(2, '0')}`
      try {
        await documents.post(attendanceEvent, attendance(key as SectionKey, students[client]!, day))
        n++
      } catch (error) {
        if (!isPawlError(error, 'PAWL_REFERENCE_UNRESOLVED')) throw error
        key = (await documents.get('Section', load.section.uuid))!.key
      }
    }
  }

  async function nameRead(type: string, uuid: string, reference: string): Promise<number> {
    const { body } = (await documents.get<Record<string, Key>>(type, uuid))!
    return names.indexOf(String(body[reference]!.sessionName))
  }

  /** A read that begins after a rename was answered shows its name or a later one; of two reads the second is not older. */
  async function read(): Promise<void> {
    while (!isOver) {
      const least = answered
      const first = await nameRead(attendanceEvent, load.child.uuid, 'sectionReference')
      const second = await nameRead('Section', load.section.uuid, 'courseOfferingReference')
      if (first < least || second < first || second > started) wrong++
      reads++
    }
  }

  const readers = [read(), read()]
  await Promise.all([rename(), ...Array.from({ length: clients }, (_, client) => write(client))])
  isOver = true
  await Promise.all(readers)
  return { reads, wrong }
}
