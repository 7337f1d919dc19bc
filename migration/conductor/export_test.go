package conductor

import (
	"berth/migration"
	"berth/migration/task"
)

// Mutation breaks a story's steps on purpose, to prove that the suite notices.
type Mutation = func([]task.Step) []task.Step

// Mutate makes a conductor run broken stories; nil mends it.
func (c *Conductor) Mutate(m Mutation) { c.mutate = m }

// Strays tells f of every status that may not follow the one before it.
func (c *Conductor) Strays(f func(m migration.Migration, from migration.Status)) { c.strays = f }
