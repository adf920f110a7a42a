// The verbs of records: declare a set, open a scope of it, and see a submission through.

import { PawlError } from '../errors.ts'
import { notOneOf, resolve } from '../kernel/options.ts'
import { currentTenant } from '../kernel/tenant.ts'
import { apply } from './apply.ts'
import { type RecordsCore, setName, setOf } from './core.ts'
import type { EndedOptions } from './ends.ts'
import { failDead } from './fail.ts'
import { keptDescriptions } from './json-schema.ts'
import { endedTable, rowKinds, submitTable } from './options.ts'
import { previewRows, rowErrors } from './preview.ts'
import type { RecordTypes, RowsOf, RowTypes, UnknownColumns } from './row-types.ts'
import { RecordScope } from './scope.ts'
import { defineSet } from './sets.ts'
import { type ListSubmissionsOptions, listSubmissions, needSubmission, type SubmissionRow, toSubmission } from './submissions.ts'
import { expired, type SubmitAnswer, submit, wrongState } from './submit.ts'
import type {
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
import { explainSubmission, type SubmissionWhy } from './why.ts'
import { type ApplyPayload, applyKind, recordsQueue } from './work.ts'

/** Records of one tenant. `pawl.records` is that of the job whose handler calls it, else the empty one; `pawl.for('acme').records` cannot name another's. */
export class Records {
  readonly #core: RecordsCore
  readonly #given: string | undefined

  constructor(core: RecordsCore, tenant: string | undefined) {
    this.#core = core
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
    if (this.#core.sets.has(name))
      throw new PawlError('PAWL_KIND_DEFINED_TWICE', `The record set '${name}' is already defined. Define each set once.`)
    const set = defineSet(name, options)
    if (this.#core.sets.size === 0) this.#defineWork()
    this.#core.sets.set(name, set)
    return { name }
  }

  /** One scope of a set, such as `in(wasteRecords, { organisation: '17', registration: '4' })`. */
  in<Rows extends RowTypes = RowTypes>(set: RecordSet<Rows> | string, scope: ScopeKey): RecordScope<Rows> {
    return new RecordScope<Rows>(this.#core, this.#given, setOf(this.#core, set), scope)
  }

  /** How sets are declared, as data with JSON Schemas: each in its latest version, of whatever process used it. */
  async sets(): Promise<RecordSetDescription[]> {
    return keptDescriptions(this.#core, this.#tenant)
  }

  async get(id: string): Promise<Submission> {
    return toSubmission(this.#core, await needSubmission(this.#core, this.#tenant, id))
  }

  /** Submissions of a set over all its scopes, newest first. */
  async submissions(set: RecordSet | string, options: ListSubmissionsOptions = {}): Promise<Submission[]> {
    const rows = await listSubmissions(this.#core, this.#tenant, { set: setName(set) }, options)
    return rows.map((row) => toSubmission(this.#core, row))
  }

  /** Rows of a submission by what they do, with the fields before and after. */
  async rows(id: string, kind: RowKind, options: PageOptions = {}): Promise<Page<PreviewRow>> {
    if (!rowKinds.includes(kind)) throw notOneOf('rows: kind', kind, rowKinds)
    return previewRows(this.#core, this.#tenant, await needSubmission(this.#core, this.#tenant, id), kind, options)
  }

  /** Why rows are not valid. */
  async errors(id: string, options: PageOptions = {}): Promise<Page<RowError>> {
    return rowErrors(this.#core, this.#tenant, (await needSubmission(this.#core, this.#tenant, id)).id, options)
  }

  /** Takes the scope's slot and answers at once; a job applies it. Refused when another holds the slot, or the scope has moved since the upload. */
  async submit(id: string, options: SubmitOptions = {}): Promise<SubmitAnswer> {
    resolve('submit', submitTable, options)
    return submit(this.#core, this.#tenant, id, 'validated', options)
  }

  /** Submits a failed one again, with its slot and baseline checked anew. */
  async resume(id: string, options: SubmitOptions = {}): Promise<SubmitAnswer> {
    resolve('resume', submitTable, options)
    return submit(this.#core, this.#tenant, id, 'failed', options)
  }

  /** Compares a submission's rows with the scope as it is now: a new submission, with its own preview. */
  async rebase(id: string): Promise<Submission> {
    const from = await needSubmission(this.#core, this.#tenant, id)
    if (from.is_expired) throw expired(id)
    if (!['validated', 'superseded', 'failed'].includes(from.state))
      throw wrongState(id, from.state, 'validated, superseded or failed')
    const place = { tenant: this.#tenant, set: setOf(this.#core, from.record_set), scopeId: from.scope_id }
    // What is staged is what the columns and the schema of then made of the file; those of now may make something else of it, or refuse it.
    if (from.schema_version !== place.set.schemaVersion) throw otherSchema(from, place.set.schemaVersion)
    const made = await rebase(this.#core, place, {
      id: from.id,
      baselineNumber: from.baseline_number,
      format: from.format,
      name: from.name,
      by: from.submitted_by,
      lines: Number(from.lines),
      ignoredSheets: JSON.parse(from.ignored_sheets) as string[],
      types: JSON.parse(from.types!) as string[],
      attributes: from.attributes,
      receivedAt: from.received_at_revision!,
    })
    return this.get(made)
  }

  /** Waits until a submission is submitted or failed, whoever applies it; also until it is superseded, invalid or removed. Answers with it. */
  async ended(id: string, options: EndedOptions = {}): Promise<Submission> {
    const { timeout, signal } = resolve('ended', endedTable, options)
    const { id: known } = await needSubmission(this.#core, this.#tenant, id)
    await this.#core.ends.wait(this.#core, this.#tenant, known, timeout, signal)
    return this.get(id)
  }

  /** Why a submission is where it is, and what to do. */
  async why(id: string): Promise<SubmissionWhy> {
    return explainSubmission(this.#core, this.#tenant, await needSubmission(this.#core, this.#tenant, id))
  }

  #defineWork(): void {
    const jobs = this.#core.jobs('')
    this.#core.sweep.start(this.#core)
    // Failures are counted in the submission's row and decided there; the job's own limit is for what cannot even be written down.
    jobs.define<ApplyPayload>(applyKind, {
      queue: recordsQueue,
      timeout: '1h',
      retry: { attempts: 100, crashes: 10, initialMs: 500, maxMs: 30_000 },
      run: (job, context) => apply(this.#core, job, context),
      onDead: async (job) => {
        const payload = (await this.#core.jobs(job.tenant).get(job.id))?.payload as ApplyPayload | undefined
        if (payload !== undefined) await failDead(this.#core, job.tenant, payload.submission)
      },
    })
  }
}

function otherSchema({ id, record_set, state, schema_version }: SubmissionRow, current: number): PawlError {
  return new PawlError(
    'PAWL_WRONG_STATE',
    `Submission ${id} was read with schema version ${schema_version} of '${record_set}', but this process has version ${current}. Upload the file again.`,
    { details: { id, state, schemaVersion: schema_version, current } },
  )
}
