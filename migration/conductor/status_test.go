package conductor_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/migration"
	"berth/migration/conductor"
)

// TestStories_AreWhatIsWrittenOfThem holds the steps of every story, with undos in
// brackets and ! where only forward is left.
func TestStories_AreWhatIsWrittenOfThem(t *testing.T) {
	cold := "inspect_source choose_destination check_destination claim[abort_claim] swap_allocations[swap_allocations_back] check_source record_context[drop_context]" +
		" prep_resize[rollback_prep_resize] power_off[power_on] ship_disks hand_over[keep_guest] accept_handed! finish_resize!"
	inPlace := "inspect_source claim[abort_claim] swap_allocations[swap_allocations_back] prep_change[rollback_prep_change] power_off[power_on] apply_change[unapply_change] start_changed"
	want := map[string]string{
		"live-migration": "inspect_source choose_destination check_destination claim[abort_claim] swap_allocations[swap_allocations_back] check_source record_context[drop_context]" +
			" pre_live_migration[rollback_live_migration_at_destination] stream[reclaim] commit[reclaim] accept_token! finish_destination! clean_up_source! delete_migration_allocation!",
		"live-migration-post-copy": "inspect_source choose_destination check_destination claim[abort_claim] swap_allocations[swap_allocations_back] check_source record_context[drop_context]" +
			" pre_live_migration[rollback_live_migration_at_destination] stream[reclaim] post_copy[reclaim] commit[reclaim] accept_token! follow_post_copy!" +
			" finish_destination! clean_up_source! delete_migration_allocation!",
		"migration": cold, "resize": cold, "resize-in-place": inPlace, "rebuild": inPlace + " finish_change! delete_migration_allocation!",
		"confirm":          "confirm_source! confirm_destination! delete_migration_allocation!",
		"confirm-in-place": "finish_change! delete_migration_allocation!",
		"revert": "await_return[cancel_return] revert_power_off[power_on] carry_volumes hand_back[keep_guest] accept_handed! finish_revert! clean_up_reverted!" +
			" revert_allocations!",
		"revert-by-itself": "await_return! revert_power_off! hand_back! accept_handed! finish_revert! clean_up_reverted! revert_allocations!",
		"revert-in-place":  "revert_power_off[power_on] unapply_change! power_on! release_claim! revert_allocations!",
	}
	want["share-nothing-migration"] = "inspect_source choose_destination check_destination claim[abort_claim] copy_instance[remove_copy]" +
		" swap_allocations[swap_allocations_back] check_source record_context[drop_context] prep_resize[rollback_prep_resize] power_off[power_on]" +
		" snapshot_disks[drop_snapshot] disconnect_source[reconnect_source] ship_disks hand_over[keep_guest]" +
		" accept_handed! finish_resize! show_instance! hide_instance!"
	want["evacuation"] = "lost choose_destination check_destination claim[abort_claim] swap_allocations[swap_allocations_back]" +
		" prep_evacuation[rollback_prep_evacuation] take_over[give_up] accept_evacuated! finish_evacuation!"
	want["share-nothing-resize"] = want["share-nothing-migration"]
	got := map[string]string{}
	for _, s := range conductor.Stories() {
		var steps []string
		forward := false
		for _, st := range s.Steps {
			text := st.Name
			if st.Undo != "" {
				text += "[" + st.Undo + "]"
			}
			if st.Forward {
				text += "!"
			}
			if forward && !st.Forward {
				t.Errorf("%s: %s comes after a step that is only forward", s.Name, st.Name)
			}
			forward = st.Forward
			if st.Status == "" || st.Asks == "" || st.Final && st.Forward || st.Forward && (st.Undo != "" || st.UndoneOnRestart) {
				t.Errorf("%s: %+v", s.Name, st)
			}
			steps = append(steps, text)
		}
		got[s.Name] = strings.Join(steps, " ")
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestStatuses_OfEveryStoryAreInTheTable: each status that a story shows may follow the one
// before, and error lies between any of them and itself.
func TestStatuses_OfEveryStoryAreInTheTable(t *testing.T) {
	first := map[migration.Stage]migration.Status{
		migration.StageMove: migration.StatusAccepted, migration.StageConfirm: migration.StatusFinished, migration.StageRevert: migration.StatusFinished,
	}
	for _, s := range conductor.Stories() {
		from := first[s.Stage]
		for _, st := range s.Steps {
			if !migration.MayFollow(s.Type, from, st.Status) {
				t.Errorf("%s: %s after %s", s.Name, st.Status, from)
			}
			if !migration.MayFollow(s.Type, st.Status, migration.StatusError) || !migration.MayFollow(s.Type, migration.StatusError, st.Status) {
				t.Errorf("%s: no way from %s to error and back", s.Name, st.Status)
			}
			from = st.Status
		}
	}
	for _, tt := range []struct {
		kind     string
		from, to migration.Status
		want     bool
	}{
		{migration.TypeResize, migration.StatusFinished, migration.StatusCancelled, false}, // revert it
		{migration.TypeResize, migration.StatusConfirming, migration.StatusReverting, false},
		{migration.TypeResize, migration.StatusConfirmed, migration.StatusReverting, false},
		{migration.TypeResize, migration.StatusReverting, migration.StatusFinished, true},
		{migration.TypeLiveMigration, migration.StatusRunning, migration.StatusPreparing, false},
		{migration.TypeLiveMigration, migration.StatusRunning, migration.StatusFinished, false},
		{migration.TypeRebuild, migration.StatusPostMigrating, migration.StatusFinished, false},
		{migration.TypeEvacuation, migration.StatusAccepted, migration.StatusDone, false},
		{migration.TypeEvacuation, migration.StatusDone, migration.StatusCompleted, true},
		{migration.TypeRebuild, migration.StatusDone, migration.StatusCompleted, false},
		{"a type that is none", migration.StatusAccepted, migration.StatusDone, false},
	} {
		if got := migration.MayFollow(tt.kind, tt.from, tt.to); got != tt.want {
			t.Errorf("%s: %s after %s: %v", tt.kind, tt.to, tt.from, got)
		}
	}
}

// TestStatusTables_NameEveryStatusOnce: every status of a transition is explained, and
// none that ends has a way on, but that of an evacuation to one that ends it, too.
func TestStatusTables_NameEveryStatusOnce(t *testing.T) {
	means, ways, _ := strings.Cut(migration.StatusTables(), "\nTransitions of ")
	var known, ending []string
	for _, line := range strings.Split(strings.TrimSpace(means), "\n")[2:] {
		cells := strings.Split(line, "|")
		name := strings.TrimSpace(cells[1])
		if slices.Contains(known, name) {
			t.Errorf("%s stands twice", name)
		}
		if known = append(known, name); strings.TrimSpace(cells[3]) == "yes" {
			ending = append(ending, name)
		}
	}
	for _, line := range strings.Split(ways, "\n") {
		cells := strings.Split(line, "|")
		if len(cells) < 4 || !strings.Contains(cells[1], "`") {
			continue
		}
		if slices.Contains(ending, strings.TrimSpace(cells[1])) && line != "| `done` | `completed` |" {
			t.Errorf("%s ends, and has a way on", cells[1])
		}
		for _, name := range append(strings.Split(cells[2], ", "), cells[1]) {
			if !slices.Contains(known, strings.TrimSpace(name)) {
				t.Errorf("%s is not explained", name)
			}
		}
	}
	if len(known) != 18 {
		t.Errorf("%d statuses: %v", len(known), known)
	}
}
