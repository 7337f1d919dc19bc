package soak

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"berth/migration"
	"berth/migration/conductor"
)

// Kind is what a round does with its guest.
type Kind string

// The kinds.
const (
	Live     Kind = "live migration"
	Cold     Kind = "cold migration"
	Resize   Kind = "resize to the other host"
	ResizeIn Kind = "resize on its host"
	Rebuild  Kind = "rebuild"
	// Of hosts that cannot send each other a packet: a third one's agent conducts.
	ApartCold   Kind = "share-nothing cold migration"
	ApartResize Kind = "share-nothing resize"
)

// Kinds are all of them.
var Kinds = []Kind{Live, Cold, Resize, ResizeIn, Rebuild, ApartCold, ApartResize}

// End is what becomes of a move that has finished and waits.
type End string

// The ends. Window is a confirmation by nobody's hand.
const (
	Confirm End = "confirm"
	Revert  End = "revert"
	Window  End = "confirm by its window"
)

// Power is what the guest's user has chosen when the move is asked for.
type Power string

// The power states, as libvirt spells them; empty is running.
const (
	Running Power = "running"
	Paused  Power = "paused"
	Off     Power = "shut off"
)

// Story is the move of a round. The zero value is a live migration.
type Story struct {
	Kind  Kind
	End   End  // of what waits to be confirmed
	Grow  bool // of a resize: the disk becomes larger
	Boots bool // the guest is given time to boot before its move is confirmed or reverted
	Power Power
}

// String is the story in a table.
func (s Story) String() string {
	out := []string{string(s.kind())}
	if s.Grow {
		out[0] += " with a larger disk"
	}
	if s.Power != "" {
		out[0] += " of a guest that is " + string(s.Power)
	}
	if s.End != "" {
		out = append(out, string(s.End))
	}
	return strings.Join(out, ", ")
}

func (s Story) kind() Kind { return cmp.Or(s.Kind, Live) }

// cold: the guest is powered off for it.
func (s Story) cold() bool { return s.kind() != Live }

// crosses: it takes the guest to the other host.
func (s Story) crosses() bool { return s.kind() != ResizeIn && s.kind() != Rebuild }

// waits: somebody confirms or reverts it.
func (s Story) waits() bool { return s.cold() && s.kind() != Rebuild }

func (s Story) resizes() bool {
	return s.kind() == Resize || s.kind() == ResizeIn || s.kind() == ApartResize
}

// apart: the two hosts do not reach each other, and a third one's agent conducts.
func (s Story) apart() bool { return s.kind() == ApartCold || s.kind() == ApartResize }

// migrationType is Nova's word for it.
func (s Story) migrationType() string {
	return map[Kind]string{
		Live: migration.TypeLiveMigration, Cold: migration.TypeMigration, Resize: migration.TypeResize, ResizeIn: migration.TypeResize, Rebuild: migration.TypeRebuild,
		ApartCold: migration.TypeMigration, ApartResize: migration.TypeResize,
	}[s.kind()]
}

// moments are the beginnings of all its steps, from the code.
func (s Story) moments() []Moment {
	stages := []migration.Stage{migration.StageMove}
	switch {
	case s.End == Revert:
		stages = append(stages, migration.StageRevert)
	case s.waits():
		stages = append(stages, migration.StageConfirm)
	}
	var out []Moment
	for _, stage := range stages {
		for _, one := range conductor.Stories() {
			// What follows the move is the same for a cold migration and a resize.
			theirs := one.Type == s.migrationType() || stage != migration.StageMove && one.Type == migration.TypeResize
			if stage == migration.StageMove && strings.HasPrefix(one.Name, "share-nothing") != s.apart() {
				continue
			}
			if one.Stage != stage || !theirs || one.InPlace == s.crosses() || strings.HasSuffix(one.Name, "by-itself") || strings.HasSuffix(one.Name, "post-copy") {
				continue
			}
			for _, step := range one.Steps {
				out = append(out, Moment{Step: step.Name, Stage: stage})
			}
		}
	}
	return out
}

// strikes says whether a fault makes sense in a story of this kind.
func (f Fault) strikes(k Kind) bool {
	s := Story{Kind: k}
	if f.third && !s.apart() {
		return false
	}
	return !s.cold() || f.arm == nil && !f.streams && !f.live && (s.crosses() || !f.far)
}

// storyOf draws a story that a fault can strike; a third are live migrations.
func storyOf(rng *rand.Rand, f Fault, kinds []Kind) Story {
	var fit []Kind
	for _, k := range kinds {
		if f.strikes(k) {
			fit = append(fit, k)
		}
	}
	if slices.Contains(fit, Live) && len(fit) > 1 {
		fit = append(fit, Live)
	}
	if len(fit) == 0 {
		return Story{}
	}
	s := Story{Kind: fit[rng.IntN(len(fit))]}
	if s.resizes() {
		s.Grow = rng.IntN(2) == 0
	}
	if s.waits() {
		s.End = []End{Confirm, Revert, Revert, Window}[rng.IntN(4)]
	}
	if s.cold() {
		s.Power = []Power{"", "", "", "", Paused, Off}[rng.IntN(6)]
		s.Boots = s.Power == "" && s.End != Window && rng.IntN(2) == 0
	}
	if s.kind() == Live {
		s.Kind = ""
	}
	return s
}

// window is after how long a finished move confirms itself.
func (s Story) window() time.Duration {
	if s.End == Window {
		return 500 * time.Millisecond
	}
	return 0
}

// flavor is what guests of it have.
type flavor struct{ cpus, memory, disk int } // memory in MiB, disk in GiB

// The flavors of the bed's hosts. A guest whose disk has grown is not used again.
var flavors = map[string]flavor{"small": {1, 128, 1}, "wide": {2, 144, 1}, "grown": {1, 160, 2}}

const firstFlavor, grownFlavor = "small", "grown"

// flavorFrom is the flavor that the story gives to a guest that has one.
func (s Story) flavorFrom(old string) string {
	switch {
	case !s.resizes():
		return old
	case s.Grow:
		return grownFlavor
	case old == firstFlavor:
		return "wide"
	}
	return firstFlavor
}
