// A school with two sessions, and twelve sections with 730 referrers each.

import type { Outcome, Pawl } from 'pawl'

export const schoolId = 255901001
export const schoolYear = 2026
export const students = Array.from({ length: 28 }, (_, index) => String(604822 + index))
const staff = ['207219', '207220']
export const days = Array.from({ length: 24 }, (_, index) => `2026-09-${String(index + 1).padStart(2, '0')}`)

export const session = (sessionName: string) => ({
  sessionName,
  schoolReference: { schoolId },
  schoolYearTypeReference: { schoolYear },
  totalInstructionalDays: 88,
})
export const offeringKey = (sessionName: string, localCourseCode = 'ALG-1') => ({
  localCourseCode,
  schoolId,
  schoolYear,
  sessionName,
})
export const sectionKey = (sectionIdentifier: string, sessionName: string) => ({ sectionIdentifier, ...offeringKey(sessionName) })

export const section = (sectionIdentifier: string, sessionName: string) => ({
  sectionIdentifier,
  courseOfferingReference: offeringKey(sessionName),
  locationReference: { classroomIdentificationCode: '106', schoolId },
  classPeriods: ['01 - Traditional', '02 - Traditional'].map((classPeriodName) => ({
    classPeriodReference: { classPeriodName, schoolId },
  })),
  availableCredits: 1,
})

export type SectionKey = ReturnType<typeof sectionKey>

export const attendanceEvent = 'StudentSectionAttendanceEvent'
export const attendance = (sectionReference: SectionKey, studentUniqueId: string, eventDate: string, reason = 'Excused') => ({
  attendanceEventCategoryDescriptor: 'Absence',
  eventDate,
  sectionReference,
  studentReference: { studentUniqueId },
  attendanceEventReason: reason,
})

/** What an absence of the first student has in its key beside the section's. */
export const absence = (eventDate: string) => ({
  attendanceEventCategoryDescriptor: 'Absence',
  eventDate,
  studentUniqueId: students[0]!,
})

const enrolment = (sectionReference: SectionKey, studentUniqueId: string) => ({
  beginDate: '2026-08-24',
  sectionReference,
  studentReference: { studentUniqueId },
})

const gradingPeriod = (periodSequence: number) => ({ gradingPeriodDescriptor: 'Six Weeks', periodSequence, schoolId, schoolYear })

const grade = (sectionReference: SectionKey, studentUniqueId: string, periodSequence: number) => ({
  gradeTypeDescriptor: 'Grading Period',
  gradingPeriodReference: gradingPeriod(periodSequence),
  studentSectionAssociationReference: { beginDate: '2026-08-24', studentUniqueId, ...sectionReference },
  numericGradeEarned: 70 + (Number(studentUniqueId) % 30),
})

/** 28 + 672 + 28 + 2 = 730 documents that refer to the section, and 56 grades that refer to the first 28 of those. */
function ofSection(key: SectionKey): Readonly<Record<string, readonly object[]>> {
  return {
    StudentSectionAssociation: students.map((student) => enrolment(key, student)),
    [attendanceEvent]: students.flatMap((student) => days.map((day) => attendance(key, student, day))),
    GradebookEntry: Array.from({ length: 28 }, (_, index) => ({
      gradebookEntryTitle: `Assignment ${index + 1}`,
      dateAssigned: '2026-09-01',
      sectionReference: key,
    })),
    StaffSectionAssociation: staff.map((staffUniqueId) => ({
      beginDate: '2026-08-24',
      staffReference: { staffUniqueId },
      sectionReference: key,
    })),
    Grade: students.flatMap((student) => [grade(key, student, 1), grade(key, student, 2)]),
  }
}

/** What refers comes after what it refers to. */
export async function seed(pawl: Pawl, sections: readonly string[], sessions: readonly [string, ...string[]]): Promise<number> {
  const [first] = sessions
  let count = 0
  const post = async (type: string, bodies: readonly object[]): Promise<void> => {
    const outcomes = await pawl.documents.postMany(type, bodies)
    count += outcomes.filter(isCreated).length
    const refused = outcomes.find((outcome) => !outcome.ok)
    if (refused !== undefined && !refused.ok) throw refused.error
  }
  await post('School', [{ schoolId, nameOfInstitution: 'Glendale High' }])
  await post('SchoolYearType', [{ schoolYear }])
  await post(
    'Student',
    students.map((studentUniqueId) => ({ studentUniqueId })),
  )
  await post(
    'Staff',
    staff.map((staffUniqueId) => ({ staffUniqueId })),
  )
  await post(
    'StudentSchoolAssociation',
    students.map((studentUniqueId) => ({
      entryDate: '2026-08-24',
      schoolReference: { schoolId },
      studentReference: { studentUniqueId },
    })),
  )
  await post('Course', [{ courseCode: 'ALGEBRA', educationOrganizationReference: { educationOrganizationId: schoolId } }])
  await post('Session', sessions.map(session))
  await post(
    'GradingPeriod',
    [1, 2].map((sequence) => {
      const { gradingPeriodDescriptor, periodSequence } = gradingPeriod(sequence)
      return { gradingPeriodDescriptor, periodSequence, schoolReference: { schoolId }, schoolYearTypeReference: { schoolYear } }
    }),
  )
  await post(
    'ClassPeriod',
    ['01 - Traditional', '02 - Traditional'].map((classPeriodName) => ({ classPeriodName, schoolReference: { schoolId } })),
  )
  await post('Location', [{ classroomIdentificationCode: '106', schoolReference: { schoolId }, maximumNumberOfSeats: 30 }])
  await post(
    'CourseOffering',
    sessions.map((sessionName) => ({
      localCourseCode: 'ALG-1',
      schoolReference: { schoolId },
      sessionReference: { schoolId, schoolYear, sessionName },
      courseReference: { courseCode: 'ALGEBRA', educationOrganizationId: schoolId },
    })),
  )
  await post(
    'Section',
    sections.map((name) => section(name, first)),
  )
  for (const name of sections)
    for (const [type, bodies] of Object.entries(ofSection(sectionKey(name, first)))) await post(type, bodies)
  return count
}

function isCreated(outcome: Outcome): boolean {
  return outcome.ok && outcome.outcome === 'created'
}
