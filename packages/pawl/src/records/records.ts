// The verbs of records: declare a set, open a scope of it, and see a submission through.

import { PawlError } from '../errors.ts'
import { currentTenant } from '../kernel/handler.ts'
import { check, resolve, type WaitOptions } from '../kernel/options.ts'
import { type ApplyPayload, apply, applyKind } from './apply.ts'
import { cancel, failDead } from './fail.ts'
import { cancelSubmissionTable, endedTable, pageTable, rowKind, submitTable } from './options.ts'
import { previewRows, rowErrors } from './preview.ts'
import type { RecordTypes, RowsOf, RowTypes, UnknownColumns } from './rows/row-types.ts'
import { RecordScope } from './scope.ts'
import { defineSet, keptDescriptions, type Registry, setName, setOf } from './sets.ts'
import {
  explainSubmission,
  type ListSubmissionsOptions,
  listSubmissions,
  needSubmission,
  type StoredSubmission,
  type SubmissionWhy,
  toSubmission,
} from './submissions.ts'
import { type SubmitAnswer, submit } from './submit.ts'
import type {
  CancelSubmissionOptions,
  Page,
  PageOptions,
  PreviewRow,
  RecordSet,
  RecordSetDescription,
  RecordSetOptions,
  RowError,
  RowKind,
  ScopeKey,
  Submission,
  SubmitOptions,
} from './types.ts'
import { rebase } from './upload.ts'

/** What ends the job of a submission, and starts another. */
export const recordsVerbs = { prefix: 'pawl.records.', cancel: 'records.cancel(id, { by, reason })', retry: 'records.resume(id)' }

/** Records of one tenant. `pawl.records` is that of the job whose handler calls it, else the empty one; `pawl.for('acme').records` cannot name another's. */
export class Records {
  readonly #registry: Registry
  readonly #given: string | undefined

  constructor(registry: Registry, tenant: string | undefined) {
    this.#registry = registry
    this.#given = tenant
  }

  get #tenant(): string {
    return this.#given ?? currentTenant()
  }

  /** Declares a record set. With the first one this process's workers also do the work of records. */
  define<const Types extends RecordTypes, const Unknown extends UnknownColumns = 'reject'>(
    name: string,
    options: RecordSetOptions<Types, Unknown>,
  ): RecordSet<RowsOf<Types, Unknown>> {
    if (this.#registry.sets.has(name))
      throw new PawlError('PAWL_KIND_DEFINED_TWICE', `The record set '${name}' is already defined. Define each set once.`)
    const set = defineSet(name, options)
    if (this.#registry.sets.size === 0) this.#defineWork()
    this.#registry.sets.set(name, set)
    return { name }
  }

  /** One scope of a set, such as `in(wasteRecords, { organisation: '17', registration: '4' })`. */
  in<Rows extends RowTypes = RowTypes>(set: RecordSet<Rows> | string, scope: ScopeKey): RecordScope<Rows> {
    return new RecordScope<Rows>(this.#registry, this.#given, setOf(this.#registry, set), scope)
  }

  /** How sets are declared, as data with JSON Schemas: each in its latest version, of whatever process used it. */
  async sets(): Promise<RecordSetDescription[]> {
    return keptDescriptions(this.#registry, this.#tenant)
  }

  async get(id: string): Promise<Submission> {
    return toSubmission(this.#registry, await this.#need(id))
  }

  /** Submissions of a set over all its scopes, newest first. */
  async submissions(set: RecordSet | string, options: ListSubmissionsOptions = {}): Promise<Page<Submission>> {
    return listSubmissions(this.#registry, this.#tenant, { record_set: setName(set) }, options)
  }

  /** Rows of a submission by what they do, with the fields before and after. */
  async rows(id: string, kind: RowKind, options: PageOptions = {}): Promise<Page<PreviewRow>> {
    check('rows', 'kind', rowKind, kind)
    const page = resolve('rows', pageTable, options)
    return previewRows(this.#registry, await this.#need(id), kind, page)
  }

  /** Why rows are not valid. */
  async errors(id: string, options: PageOptions = {}): Promise<Page<RowError>> {
    const page = resolve('errors', pageTable, options)
    return rowErrors(this.#registry, await this.#need(id), page)
  }

  /** Takes the scope's slot and answers at once; a job applies it. Refused when another holds the slot, or the scope has moved since the upload. */
  async submit(id: string, options: SubmitOptions = {}): Promise<SubmitAnswer> {
    resolve('submit', submitTable, options)
    return submit(this.#registry, this.#tenant, id, 'validated', options)
  }

  /** Submits a failed one again, after checking its slot and baseline again. */
  async resume(id: string, options: SubmitOptions = {}): Promise<SubmitAnswer> {
    resolve('resume', submitTable, options)
    return submit(this.#registry, this.#tenant, id, 'failed', options)
  }

  /**
   * Ends a submission as failed: its slot is free, what it wrote is purged, and `resume` is its retry. One that is being uploaded becomes
   * upload-failed, and an upload with `restart` is its retry.
   */
  async cancel(id: string, options: CancelSubmissionOptions): Promise<Submission> {
    resolve('cancel', cancelSubmissionTable, options)
    await cancel(this.#registry, this.#tenant, id, options)
    return this.get(id)
  }

  /** Compares a submission's rows with the scope as it is now: a new submission, with its own preview. */
  async rebase(id: string): Promise<Submission> {
    return this.get(await rebase(this.#registry, await this.#need(id)))
  }

  /** Waits until a submission is submitted or failed, in any process; also until it is superseded, invalid or removed. Answers with it. */
  async ended(id: string, options: WaitOptions = {}): Promise<Submission> {
    const { timeout, signal } = resolve('ended', endedTable, options)
    await this.#need(id)
    await this.#registry.ends.wait(this.#registry, this.#tenant, id, timeout, signal)
    return this.get(id)
  }

  /** Why a submission is where it is, and what to do. */
  async why(id: string): Promise<SubmissionWhy> {
    return explainSubmission(this.#registry, await this.#need(id))
  }

  #need(id: string): Promise<StoredSubmission> {
    return needSubmission(this.#registry, this.#tenant, id)
  }

  #defineWork(): void {
    const registry = this.#registry
    registry.sweep.start(registry)
    // Failures are counted in the submission's row and decided there; the job's own limit is for what cannot even be written down.
    registry.jobs('').define<ApplyPayload>(applyKind, {
      queue: 'pawl.records',
      timeout: '1h',
      retry: { attempts: 100, crashes: 10, initialMs: 500, maxMs: 30_000 },
      run: (job, context) => apply(registry, job, context),
      onDead: async (job) => {
        const payload = (await registry.jobs(job.tenant).get(job.id))?.payload as ApplyPayload | undefined
        if (payload !== undefined) await failDead(registry, job.tenant, payload.submission)
      },
    })
  }
}
