import { execFile } from 'node:child_process'
import { readFile, readlink, stat } from 'node:fs/promises'
import { basename } from 'node:path'
import { promisify } from 'node:util'
import { codeOf } from './errors.ts'

const execFileText = promisify(execFile)

/**
 * When a process started, as an opaque text; undefined when there is no such process.
 *
 * A pid alone does not name a process: the kernel reuses numbers, and after a reboot it starts from 1 again. Pid and start
 * together do. A zombie counts as gone: in a container whose first process reaps no children, an ended postmaster stays one.
 */
export async function startOf(pid: number): Promise<string | undefined> {
  if (!Number.isInteger(pid) || pid <= 0 || !answersSignalZero(pid)) return undefined
  if (process.platform === 'linux') return linuxStart(pid)
  if (process.platform === 'win32') return 'unknown'
  const { stdout } = await execFileText('ps', ['-o', 'stat=,lstart=', '-p', String(pid)]).catch(() => ({ stdout: '' }))
  const [state, ...started] = stdout.trim().split(/\s+/)
  return state === undefined || state === '' || state.startsWith('Z') ? undefined : started.join(' ')
}

export async function isAlive(pid: number): Promise<boolean> {
  return (await startOf(pid)) !== undefined
}

/** It has ended and its parent has not reaped it. PostgreSQL, which asks by signal zero, takes it for alive. */
export async function isZombie(pid: number): Promise<boolean> {
  return answersSignalZero(pid) && !(await isAlive(pid))
}

export type Identity = 'yes' | 'no' | 'unknown'

/**
 * Whether this living process is the postmaster of this data directory. Asked before we connect, so that our password is not
 * offered to a stranger that happens to listen on an old port. 'unknown' where the system does not tell.
 */
export async function isPostmasterOf(pid: number, dataDir: string): Promise<Identity> {
  if (process.platform === 'win32') return 'unknown'
  if (process.platform === 'linux') return linuxIdentity(pid, dataDir)
  const { stdout } = await execFileText('ps', ['-o', 'args=', '-p', String(pid)]).catch(() => ({ stdout: '' }))
  return stdout.includes('postgres') && stdout.includes(dataDir) ? 'yes' : 'no'
}

async function linuxIdentity(pid: number, dataDir: string): Promise<Identity> {
  const [owner, status, workingDir, commandLine] = await Promise.all([
    stat(dataDir).then(({ uid }) => String(uid)),
    readFile(`/proc/${pid}/status`, 'utf8').catch(() => ''),
    readlink(`/proc/${pid}/cwd`).catch(() => undefined),
    readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() => ''),
  ])
  const uid = /^Uid:\s+(\d+)/m.exec(status)?.[1]
  if (uid !== undefined && uid !== owner) return 'no'
  // The postmaster changes into its data directory. In a container even root may not read that of another account (it lacks
  // CAP_SYS_PTRACE there), while the command line is open to all.
  if (workingDir !== undefined) return workingDir === dataDir ? 'yes' : 'no'
  const [program, ...args] = commandLine.split('\0')
  if (program === undefined || program === '') return 'unknown'
  if (basename(program) !== 'postgres') return 'no'
  return args.includes(dataDir) ? 'yes' : 'unknown'
}

function answersSignalZero(pid: number): boolean {
  try {
    process.kill(pid, 0)
    return true
  } catch (error) {
    // EPERM: it is alive and belongs to another user.
    return codeOf(error) === 'EPERM'
  }
}

async function linuxStart(pid: number): Promise<string | undefined> {
  const [stat, boot] = await Promise.all([
    readFile(`/proc/${pid}/stat`, 'utf8').catch(() => undefined),
    readFile('/proc/sys/kernel/random/boot_id', 'utf8').catch(() => ''),
  ])
  // The second field is the program's name in parentheses and may hold spaces and parentheses itself: count from its end.
  const fields = stat?.slice(stat.lastIndexOf(')') + 2).split(' ')
  const state = fields?.[0]
  const startTicks = fields?.[19]
  if (state === undefined || startTicks === undefined || state === 'Z' || state === 'X') return undefined
  return `${boot.trim()}:${startTicks}`
}
