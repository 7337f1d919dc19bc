package conductor_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"berth/internal/fault"
	"berth/internal/runtime/simruntime"
	"berth/migration"
	"berth/migration/conductor"
	"berth/topology"
)

func TestStart_TheSameUUIDIsTheSameMoveOrRefused(t *testing.T) {
	large := *larger.Flavor
	large.Name = "large"
	edited := large
	edited.MemoryMB *= 2
	named := topology.Flavor{Name: "large"}
	image := migration.Image{Path: "/srv/x.raw"}
	resize := conductor.Request{Type: migration.TypeResize, Change: migration.Change{Flavor: &large}}
	w := newWorld(t, 1, script{request: cold}, faults{})
	w.inProcess(func(p *simruntime.Process, c *conductor.Conductor) {
		ctx := context.Background()
		first, err := c.Start(ctx, asked(resize, "b"))
		if err != nil {
			t.Fatal(err)
		}
		for _, tt := range []struct {
			name   string
			change func(*conductor.Request)
			says   []string // one for each reason; none for the same move
		}{
			{"the same", func(*conductor.Request) {}, nil},
			{"other options", func(r *conductor.Request) { r.Options.Bandwidth = 7 << 20 }, nil},
			{"another type", func(r *conductor.Request) { r.Type, r.Change = migration.TypeMigration, migration.Change{} },
				[]string{"type resize, not migration", "flavor large, not none"}},
			{"no type, which is live", func(r *conductor.Request) { r.Type, r.Change = "", migration.Change{} },
				[]string{"type resize, not live-migration", "flavor large, not none"}},
			{"another flavor", func(r *conductor.Request) { r.Change.Flavor = &topology.Flavor{Name: "huge", VCPUs: 9, MemoryMB: 9} },
				[]string{"flavor large, not huge"}},
			{"a flavor that was edited", func(r *conductor.Request) { r.Change.Flavor = &edited }, []string{"flavor large, as it was then, not large, as it is asked for now"}},
			{"another destination", func(r *conductor.Request) { r.Destination = "c" }, []string{"destination b, not c"}},
			{"no destination", func(r *conductor.Request) { r.Destination = "" }, []string{"destination b, not none"}},
			{"a rebuild elsewhere", func(r *conductor.Request) {
				r.Type, r.Change, r.Destination = migration.TypeRebuild, migration.Change{Image: &image}, "a"
			}, []string{"type resize, not rebuild", "flavor large, not none", "image none, not /srv/x.raw", "destination b, not a"}},
		} {
			r := asked(resize, "b")
			tt.change(&r)
			m, err := c.Start(ctx, r)
			if len(tt.says) == 0 {
				if err != nil || m.UUID != first.UUID {
					t.Errorf("%s: %s, %v", tt.name, m.UUID, err)
				}
				continue
			}
			got := fault.ReasonsOf(err)
			if !errors.Is(err, fault.Exists) || len(got) != len(tt.says) {
				t.Errorf("%s: %v with %+v, want %q", tt.name, err, got, tt.says)
				continue
			}
			for i, r := range got {
				if r.Code != "uuid_taken" || r.Change == "" || !strings.HasSuffix(r.Message, " was begun with "+tt.says[i]) {
					t.Errorf("%s: %+v, want %q", tt.name, r, tt.says[i])
				}
			}
		}
		byName := asked(resize, "b")
		byName.Change.Flavor = &named
		if _, known, err := c.Begun(byName); !known || err != nil {
			t.Errorf("by its flavor's name: %t, %v", known, err)
		}
		until(t, p, c, "finished", isFinished)
	})
}

func TestBegun_NoTypeIsLiveOrCold(t *testing.T) {
	w := newWorld(t, 1, script{request: cold}, faults{})
	w.inProcess(func(p *simruntime.Process, c *conductor.Conductor) {
		if _, known, err := c.Begun(asked(conductor.Request{}, "b")); known || err != nil {
			t.Errorf("before: %t, %v", known, err)
		}
		if _, err := c.Start(context.Background(), asked(cold, "b")); err != nil {
			t.Fatal(err)
		}
		if _, known, err := c.Begun(asked(conductor.Request{}, "b")); !known || err != nil {
			t.Errorf("a cold one of which no type was said: %t, %v", known, err)
		}
		until(t, p, c, "finished", isFinished)
	})
}
