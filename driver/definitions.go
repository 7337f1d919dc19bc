package driver

import "context"

// DefinitionReader is a hypervisor whose persistent definitions can be read past its daemon:
// a second witness of which domains are defined. It is an ability apart: found by its type.
type DefinitionReader interface {
	// Definitions reads the folder where the hypervisor keeps its persistent definitions.
	// fault.Unavailable where the folder is missing, cannot be read, or is not known.
	Definitions(ctx context.Context) (Definitions, error)
}

// Definitions is the folder of persistent definitions at one moment.
type Definitions struct {
	Folder string // its path on the hypervisor's machine
	// Identity names the folder itself, by filesystem and inode: another one mounted at the
	// same path has another.
	Identity string
	Files    []DefinitionFile
}

// DefinitionFile is one file of a persistent definition, whether or not the daemon has loaded it.
type DefinitionFile struct {
	Name string // of the domain, by the file's name
	UUID string // as the file says; empty where it says none, or cannot be read
}
