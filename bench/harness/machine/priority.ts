// Where it is allowed to (as root on Linux), a run takes precedence over whatever else the machine does, so that others disturb it less.
// Linux schedules by session first and by process then, so the niceness is that of the sessions of this process and of the servers.

import { readFileSync, writeFileSync } from 'node:fs'

const niceness = -10

/** Gives a function that undoes it, or undefined if it is not allowed. */
export function raisePriority(pids: readonly number[]): (() => void) | undefined {
  const raised: { readonly file: string; readonly group: string; readonly was: string }[] = []
  const restore = () => {
    for (const { file, was } of raised) write(file, was)
  }
  for (const pid of pids) {
    const file = `/proc/${pid}/autogroup`
    const [, group, was] = /^(\S+) nice (-?\d+)/.exec(read(file)) ?? []
    if (group !== undefined && raised.some((other) => other.group === group)) continue
    if (group === undefined || was === undefined || !write(file, String(niceness))) {
      restore()
      return undefined
    }
    raised.push({ file, group, was })
  }
  return restore
}

function read(file: string): string {
  try {
    return readFileSync(file, 'utf8')
  } catch {
    return ''
  }
}

function write(file: string, value: string): boolean {
  try {
    writeFileSync(file, value)
    return true
  } catch {
    return false
  }
}
