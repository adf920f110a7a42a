// The state machine of a submission, as data. The CHECK constraints of pawl.submission and the diagram in README.md say the same; a test
// compares them.

import type { SubmissionState } from './types.ts'

export interface SubmissionTransition {
  readonly from: SubmissionState
  readonly to: SubmissionState
  readonly by: string
}

export const submissionStates: readonly SubmissionState[] = [
  'uploading',
  'validating',
  'validated',
  'invalid',
  'upload-failed',
  'submitting',
  'submitted',
  'superseded',
  'failed',
]

export const submissionTransitions: readonly SubmissionTransition[] = [
  { from: 'uploading', to: 'validating', by: 'the last row is staged' },
  { from: 'uploading', to: 'invalid', by: 'the file is refused as a whole' },
  { from: 'uploading', to: 'upload-failed', by: 'the stream or the database failed, or cancel' },
  { from: 'upload-failed', to: 'uploading', by: 'a restart' },
  { from: 'validating', to: 'uploading', by: 'a restart' },
  { from: 'validating', to: 'validated', by: 'every row is valid' },
  { from: 'validating', to: 'invalid', by: 'some row is not' },
  { from: 'validating', to: 'upload-failed', by: 'the database failed, or cancel' },
  { from: 'validated', to: 'submitting', by: 'submit' },
  { from: 'validated', to: 'submitted', by: 'submit, when it changes nothing' },
  { from: 'validated', to: 'superseded', by: 'submit, when the scope has moved since the upload' },
  { from: 'validated', to: 'failed', by: 'cancel' },
  { from: 'submitting', to: 'submitted', by: 'its job commits' },
  { from: 'submitting', to: 'failed', by: 'its job gives up, or cancel; what it wrote is purged first' },
  { from: 'failed', to: 'submitting', by: 'resume' },
  { from: 'failed', to: 'superseded', by: 'resume, when the scope has moved' },
]
