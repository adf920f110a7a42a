// Peers are imported by a name that the compiler does not follow: the repository must type-check on a clone where bench/ is not
// installed, and a peer that could not be installed must cost one line of the report and nothing else.

export async function load<Module>(name: string): Promise<Module> {
  try {
    return (await import(name)) as Module
  } catch (error) {
    if ((error as { code?: string }).code !== 'ERR_MODULE_NOT_FOUND') throw error
    throw new Error(`the package ${name} is not installed in bench/ (remove bench/node_modules and run again to install it)`)
  }
}
