// A second module beside jobs-module.mjs.
export default (pawl) => {
  pawl.jobs.define('other', { run: () => 'done' })
}
