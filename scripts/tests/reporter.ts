// A reporter for vitest that writes results.jsonl, each line at once, so that a killed run keeps its results.

import { appendFileSync, mkdirSync, writeFileSync } from 'node:fs'
import { dirname, relative } from 'node:path'
import type { Reporter, TestCase, TestModule } from 'vitest/node'
import { root } from '../phase.ts'
import { fingerprint, type ResultLine, resultsFile } from '../results.ts'

export default class ResultsReporter implements Reporter {
  readonly #file = process.env.PAWL_RESULTS ?? resultsFile
  /** Tests that a pattern left out do not count as skipped. */
  readonly #titles = new RegExp(process.env.PAWL_TITLES ?? '')

  onInit(): void {
    mkdirSync(dirname(this.#file), { recursive: true })
    writeFileSync(this.#file, '')
    this.#write({ type: 'run', startedAt: new Date().toISOString(), node: process.versions.node, sources: fingerprint() })
  }

  onTestCaseResult(test: TestCase): void {
    const { state } = test.result()
    if (state === 'pending' || !this.#titles.test(test.fullName)) return
    this.#write({
      type: 'test',
      file: fileOf(test.module),
      title: test.fullName,
      state,
      ms: Math.round(test.diagnostic()?.duration ?? 0),
    })
  }

  /** A file that cannot be loaded, or a suite whose hook fails, has no test that says so. */
  onTestModuleEnd(module: TestModule): void {
    if (module.errors().length > 0)
      this.#write({ type: 'test', file: fileOf(module), title: 'the file could not be run', state: 'failed', ms: 0 })
    for (const suite of module.children.allSuites()) {
      if (suite.errors().length > 0)
        this.#write({ type: 'test', file: fileOf(module), title: suite.fullName, state: 'failed', ms: 0 })
    }
  }

  onTestRunEnd(_modules: readonly TestModule[], unhandledErrors: readonly unknown[]): void {
    this.#write({ type: 'end', unhandled: unhandledErrors.length })
  }

  #write(line: ResultLine): void {
    appendFileSync(this.#file, `${JSON.stringify(line)}\n`)
  }
}

function fileOf(module: TestModule): string {
  return relative(root, module.moduleId)
}
