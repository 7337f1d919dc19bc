package conductor

import (
	"berth/migration"
	"berth/migration/options"
	"berth/migration/task"
)

// Stories are all stories, from the lists that conductors run.
func Stories() []migration.Story {
	var out []migration.Story
	s := &story{}
	for _, m := range []migration.Migration{
		{MigrationType: migration.TypeLiveMigration},
		{MigrationType: migration.TypeLiveMigration, Options: migration.Options{PostCopy: options.On}},
		{MigrationType: migration.TypeMigration},
		{MigrationType: migration.TypeResize},
		{MigrationType: migration.TypeMigration, ShareNothing: true},
		{MigrationType: migration.TypeResize, ShareNothing: true},
		{MigrationType: migration.TypeResize, InPlace: true},
		{MigrationType: migration.TypeRebuild, InPlace: true},
		{MigrationType: migration.TypeEvacuation},
		{MigrationType: migration.TypeResize, Stage: migration.StageConfirm},
		{MigrationType: migration.TypeResize, Stage: migration.StageConfirm, InPlace: true},
		{MigrationType: migration.TypeResize, Stage: migration.StageRevert},
		{MigrationType: migration.TypeResize, Stage: migration.StageRevert, InPlace: true},
		{MigrationType: migration.TypeResize, Stage: migration.StageRevert, Unfit: &task.Error{}},
	} {
		g := s.stage(m)
		one := migration.Story{Name: g.name, Type: m.MigrationType, Stage: m.Stage, InPlace: m.InPlace, ShareNothing: m.ShareNothing}
		for _, st := range g.steps {
			one.Steps = append(one.Steps, migration.StoryStep{
				Name: st.Name, Asks: st.asks, Status: g.status(st.Name), Undo: st.undoes, MayLag: st.UndoMayLag && st.Undo != nil,
				UndoneOnRestart: st.UndoOnRestart, Final: st.Final, Forward: st.Forward,
			})
		}
		out = append(out, one)
	}
	return out
}
