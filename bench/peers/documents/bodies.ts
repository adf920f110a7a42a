// Types and bodies of the benchmark: schools with sessions, offerings and sections, about 300 bytes each, the same every time.

import type { Documents } from 'pawl'

const text = 'x'.repeat(250)

/** A part of every key: how many of them there are. */
export const counts = { schools: 50, sessions: 200, courses: 200 } as const

export function defineTypes(documents: Documents): void {
  documents.define('School', { identity: ['schoolId'], keyChange: 'cascade' })
  documents.define('Student', { identity: ['studentId'] })
  documents.define('Session', { identity: ['sessionName', 'school'], references: { school: 'School' }, keyChange: 'cascade' })
  documents.define('Course', { identity: ['courseCode', 'school'], references: { school: 'School' } })
  documents.define('Enrollment', { identity: ['student', 'school'], references: { student: 'Student', school: 'School' } })
  documents.define('Offering', { identity: ['code', 'session'], references: { session: 'Session', course: 'Course' } })
  documents.define('Section', { identity: ['sectionId', 'offering'], references: { offering: 'Offering' } })
}

export const school = (schoolId: number) => ({ schoolId, text })
export const student = (n: number) => ({ studentId: n, text })
export const session = (sessionName: string, schoolId: number) => ({ sessionName, school: { schoolId }, text })
export const offering = (code: string, sessionName: string, schoolId: number) => ({
  code,
  session: { sessionName, schoolId },
  text,
})

// ---- many, for reads and posts: each refers to others than the one before

export const schoolOf = (n: number) => 1 + (n % counts.schools)
export const sessionKey = (n: number) => ({
  sessionName: `session-${n % counts.sessions}`,
  schoolId: schoolOf(n % counts.sessions),
})
const courseKey = (n: number) => ({ courseCode: `course-${n % counts.courses}`, schoolId: schoolOf(n % counts.courses) })
export const offeringKey = (n: number) => ({ code: `code-${n}`, ...sessionKey(n) })
export const sectionKey = (n: number) => ({ sectionId: `section-${n}`, ...offeringKey(n) })

export const nth = {
  School: (n: number) => school(1 + n),
  Session: (n: number) => session(`session-${n}`, schoolOf(n)),
  Course: (n: number) => ({ courseCode: `course-${n}`, school: { schoolId: schoolOf(n) }, text }),
  Student: student,
  /** Two references to what refers to nothing. */
  Enrollment: (n: number) => ({ student: { studentId: n }, school: { schoolId: schoolOf(n) }, text }),
  /** Two references to what refers to a school. */
  Offering: (n: number) => ({ code: `code-${n}`, session: sessionKey(n), course: courseKey(n * 7), text }),
  Section: (n: number) => ({ sectionId: `section-${n}`, offering: offeringKey(n), text }),
} as const

export type TypeName = keyof typeof nth
