// Types after the Ed-Fi data standard. Eight of them have keys that may change: ClassPeriod, Grade, GradebookEntry, Location, Section, Session,
// StudentSchoolAssociation, StudentSectionAssociation. The others refuse it, but follow when a key that theirs contains changes.

import type { Pawl } from 'pawl'

export function defineTypes({ documents }: Pawl): void {
  documents.define('EducationOrganization', { identity: ['educationOrganizationId'], abstract: true })
  documents.define('School', {
    identity: ['schoolId'],
    extends: { type: 'EducationOrganization', as: { schoolId: 'educationOrganizationId' } },
  })
  documents.define('SchoolYearType', { identity: ['schoolYear'] })
  documents.define('Student', { identity: ['studentUniqueId'] })
  documents.define('Staff', { identity: ['staffUniqueId'] })

  // By the superclass: a course belongs to a school or to a district.
  documents.define('Course', {
    identity: ['courseCode', 'educationOrganizationReference'],
    references: { educationOrganizationReference: 'EducationOrganization' },
  })
  documents.define('Session', {
    identity: ['sessionName', 'schoolReference', 'schoolYearTypeReference'],
    references: { schoolReference: 'School', schoolYearTypeReference: 'SchoolYearType' },
    keyChange: 'cascade',
  })
  documents.define('GradingPeriod', {
    identity: ['gradingPeriodDescriptor', 'periodSequence', 'schoolReference', 'schoolYearTypeReference'],
    references: { schoolReference: 'School', schoolYearTypeReference: 'SchoolYearType' },
  })
  documents.define('ClassPeriod', {
    identity: ['classPeriodName', 'schoolReference'],
    references: { schoolReference: 'School' },
    keyChange: 'cascade',
  })
  documents.define('Location', {
    identity: ['classroomIdentificationCode', 'schoolReference'],
    references: { schoolReference: 'School' },
    keyChange: 'cascade',
  })

  // schoolId comes by the school and by the session, and is one field.
  documents.define('CourseOffering', {
    identity: ['localCourseCode', 'schoolReference', 'sessionReference'],
    references: { schoolReference: 'School', sessionReference: 'Session', courseReference: 'Course' },
  })
  documents.define('Section', {
    identity: ['sectionIdentifier', 'courseOfferingReference'],
    references: {
      courseOfferingReference: 'CourseOffering',
      locationReference: 'Location',
      'classPeriods[].classPeriodReference': 'ClassPeriod',
    },
    unify: [['courseOfferingReference.schoolId', 'classPeriods[].classPeriodReference.schoolId']],
    keyChange: 'cascade',
  })
  documents.define('StaffSectionAssociation', {
    identity: ['beginDate', 'staffReference', 'sectionReference'],
    references: { staffReference: 'Staff', sectionReference: 'Section' },
  })
  documents.define('GradebookEntry', {
    identity: ['gradebookEntryTitle', 'dateAssigned', 'sectionReference'],
    references: { sectionReference: 'Section' },
    keyChange: 'cascade',
  })

  documents.define('StudentSchoolAssociation', {
    identity: ['entryDate', 'schoolReference', 'studentReference'],
    references: { schoolReference: 'School', studentReference: 'Student' },
    keyChange: 'cascade',
  })
  documents.define('StudentSectionAssociation', {
    identity: ['beginDate', 'sectionReference', 'studentReference'],
    references: { sectionReference: 'Section', studentReference: 'Student' },
    keyChange: 'cascade',
  })
  documents.define('StudentSectionAttendanceEvent', {
    identity: ['attendanceEventCategoryDescriptor', 'eventDate', 'sectionReference', 'studentReference'],
    references: { sectionReference: 'Section', studentReference: 'Student' },
  })
  // The key has two school years: that of the grading period has a name of its own.
  documents.define('Grade', {
    identity: ['gradeTypeDescriptor', 'gradingPeriodReference', 'studentSectionAssociationReference'],
    references: {
      gradingPeriodReference: { type: 'GradingPeriod', as: { schoolYear: 'gradingPeriodSchoolYear' } },
      studentSectionAssociationReference: 'StudentSectionAssociation',
    },
    keyChange: 'cascade',
  })
}
