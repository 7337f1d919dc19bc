package migration

import (
	"berth/migration/options"
	"berth/migration/task"
)

// Story is one list of steps, as it runs.
type Story struct {
	Name  string `json:"story"`
	Type  string `json:"migration_type"` // of one that several types share: resize
	Stage Stage  `json:"stage"`
	// InPlace: source and destination are one host. ShareNothing: they are two that need
	// not reach each other, and any host's agent may conduct.
	InPlace      bool        `json:"in_place"`
	ShareNothing bool        `json:"share_nothing,omitempty"`
	Steps        []StoryStep `json:"steps"`
}

// StoryStep is one step of a story.
type StoryStep struct {
	Name   string `json:"step"`
	Asks   string `json:"asks"` // source, destination, placement, fleet
	Status Status `json:"status"`
	Undo   string `json:"undo"` // empty where there is nothing to undo
	// MayLag: while its undo fails, those of earlier steps go on.
	MayLag bool `json:"undo_may_lag"`
	// UndoneOnRestart: a conductor that finds it half done undoes the attempt; else it
	// does it again.
	UndoneOnRestart bool `json:"undone_on_restart"`
	// Final: from here on nobody can give it up, though it may fail and be undone.
	// Forward: it is retried until it is done, and never undone.
	Final   bool `json:"final"`
	Forward bool `json:"forward"`
}

// Stories are all stories, from the lists that conductors run.
func Stories() []Story {
	var out []Story
	s := &story{}
	for _, m := range []Migration{
		{MigrationType: TypeLiveMigration},
		{MigrationType: TypeLiveMigration, Options: Options{PostCopy: options.On}},
		{MigrationType: TypeMigration},
		{MigrationType: TypeResize},
		{MigrationType: TypeMigration, ShareNothing: true},
		{MigrationType: TypeResize, ShareNothing: true},
		{MigrationType: TypeResize, InPlace: true},
		{MigrationType: TypeRebuild, InPlace: true},
		{MigrationType: TypeEvacuation},
		{MigrationType: TypeResize, Stage: StageConfirm},
		{MigrationType: TypeResize, Stage: StageConfirm, InPlace: true},
		{MigrationType: TypeResize, Stage: StageRevert},
		{MigrationType: TypeResize, Stage: StageRevert, InPlace: true},
		{MigrationType: TypeResize, Stage: StageRevert, Unfit: &task.Error{}},
	} {
		g := s.stage(m)
		one := Story{Name: g.name, Type: m.MigrationType, Stage: m.Stage, InPlace: m.InPlace, ShareNothing: m.ShareNothing}
		for _, st := range g.steps {
			one.Steps = append(one.Steps, StoryStep{
				Name: st.Name, Asks: st.asks, Status: g.status(st.Name), Undo: st.undoes, MayLag: st.UndoMayLag && st.Undo != nil,
				UndoneOnRestart: st.UndoOnRestart, Final: st.Final, Forward: st.Forward,
			})
		}
		out = append(out, one)
	}
	return out
}
