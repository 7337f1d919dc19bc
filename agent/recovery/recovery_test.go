package recovery

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/api"
	"berth/agent/guard"
	"berth/agent/host"
	"berth/claims"
	"berth/migration"
	"berth/topology"
)

// What was told of one guest, as its verdict and its token.
func TestJudge_JoinsWhatWasTold(t *testing.T) {
	const id, move = "00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002"
	here := func(host string, epoch uint64) api.Knowledge {
		return api.Knowledge{Host: host, Instances: []api.KnownInstance{{UUID: id, Token: claims.Token{Epoch: epoch, State: claims.TokenHere, Holder: host}}}}
	}
	gave := func(host, to string, epoch uint64) api.Knowledge {
		return api.Knowledge{Host: host, Instances: []api.KnownInstance{{UUID: id, Token: claims.Token{Epoch: epoch, State: claims.TokenSurrendered, Holder: to, Migration: move}}}}
	}
	moves := func(k api.Knowledge, from, to string) api.Knowledge {
		k.Moves = []api.KnownMove{{Migration: move, Instance: id, Attempt: 2, Source: from, Destination: to, Context: &claims.MigrationContext{Migration: move, Instance: id}}}
		return k
	}
	guest := func(d claims.Domain, epoch uint64) host.Surveyed {
		return host.Surveyed{
			Domain: d, Marked: epoch > 0, Instance: claims.Instance{UUID: id, Name: "g", Token: claims.Token{Epoch: epoch}},
			Found: claims.Found{Resources: topology.Resources{VCPUs: 1, MemoryMB: 1}},
		}
	}
	paused := guest(claims.DomainRunning, 2)
	paused.Paused, paused.Moved = true, move
	token := func(epoch uint64, s claims.TokenState, holder string) claims.Token {
		return claims.Token{Epoch: epoch, State: s, Holder: holder}
	}
	byMove := token(2, claims.TokenHere, "me")
	byMove.Migration = move
	given := token(3, claims.TokenHere, "me")
	given.Migration = move
	byThird := token(3, claims.TokenSurrendered, "c")
	byThird.Migration = move
	running, off, left := claims.DomainRunning, claims.DomainOff, claims.DomainLeft
	for _, c := range []struct {
		name     string
		survey   host.Surveyed
		answers  []api.Knowledge
		silent   bool
		placed   claims.Allocated
		owner    guard.OwnerState
		behind   bool
		absent   bool
		record   claims.Token
		want     claims.Verdict
		token    claims.Token
		arrives  bool
		accepted bool
	}{
		{name: "made here, and never moved", survey: guest(running, 1), want: claims.VerdictOwn, token: token(1, claims.TokenHere, "me")},
		{name: "adopted, which leaves no mark", survey: guest(running, 0), placed: claims.AllocatedHere, want: claims.VerdictOwn, token: token(1, claims.TokenHere, "me")},
		{name: "adopted, and Placement lost it too", survey: guest(running, 0), owner: guard.OwnerHere, want: claims.VerdictOwn, token: token(1, claims.TokenHere, "me")},
		{name: "nobody's", survey: guest(running, 0), want: claims.VerdictStranger},
		{name: "a source that has been here twice", survey: guest(left, 1), answers: []api.Knowledge{here("b", 4)}, want: claims.VerdictElsewhere, token: token(4, claims.TokenSurrendered, "b")},
		{name: "what a move has defined, and its source has the guest", survey: guest(off, 2), answers: []api.Knowledge{here("b", 1)}, want: claims.VerdictElsewhere, token: token(1, claims.TokenSurrendered, "b")},
		{name: "a definition two epochs above its owner", survey: guest(off, 4), answers: []api.Knowledge{here("b", 1)}, want: claims.VerdictDoubt, token: token(4, claims.TokenDoubt, "")},
		{name: "runs by a higher epoch than another says", survey: guest(running, 4), answers: []api.Knowledge{here("b", 3)}, want: claims.VerdictOwn, token: token(4, claims.TokenHere, "me")},
		{name: "runs by a lower epoch than another says", survey: guest(running, 2), answers: []api.Knowledge{here("b", 3)}, want: claims.VerdictDoubt, token: token(3, claims.TokenDoubt, "")},
		{name: "given to a third that does not answer", survey: guest(off, 1), answers: []api.Knowledge{gave("b", "c", 3)}, silent: true, want: claims.VerdictElsewhere, token: byThird},
		{name: "accepted, resumed, and not finished", survey: guest(running, 2), answers: []api.Knowledge{moves(gave("b", "me", 2), "b", "me")}, want: claims.VerdictOwn, token: byMove, arrives: true, accepted: true},
		{name: "came long ago, and its source remembers", survey: guest(running, 2), answers: []api.Knowledge{gave("b", "me", 2)}, want: claims.VerdictOwn, token: byMove},
		{name: "given here by a higher epoch than a third believes to have", survey: guest(off, 3), answers: []api.Knowledge{gave("b", "me", 3), here("c", 2)}, want: claims.VerdictOwn, token: given},
		{name: "back by a higher epoch than an older record gave it away with", survey: guest(running, 3), record: token(2, claims.TokenSurrendered, "b"), answers: []api.Knowledge{gave("b", "me", 3)}, want: claims.VerdictOwn, token: given},
		{name: "given back by a higher epoch, and never started", survey: guest(off, 1), record: token(2, claims.TokenSurrendered, "b"), answers: []api.Knowledge{gave("b", "me", 3)}, want: claims.VerdictOwn, token: given},
		{name: "on its way here", survey: paused, answers: []api.Knowledge{moves(here("b", 1), "b", "me")}, want: claims.VerdictArriving, arrives: true},
		{name: "brought, given and not resumed", survey: paused, answers: []api.Knowledge{moves(gave("b", "me", 2), "b", "me")}, want: claims.VerdictArriving, arrives: true},
		{name: "paused, came once, and nobody knows of a move", survey: paused, want: claims.VerdictDoubt, token: token(2, claims.TokenDoubt, "")},
		{name: "runs, and its destination waits for it", survey: guest(running, 1), answers: []api.Knowledge{moves(api.Knowledge{Host: "b"}, "me", "b")}, want: claims.VerdictOwn, token: token(1, claims.TokenHere, "me")},
		{name: "has left, and its destination waits for the token", survey: guest(left, 1), answers: []api.Knowledge{moves(api.Knowledge{Host: "b"}, "me", "b")}, want: claims.VerdictDoubt, token: token(1, claims.TokenDoubt, "")},
		{name: "off, and a host is silent", survey: guest(off, 1), silent: true, placed: claims.AllocatedHere, want: claims.VerdictDoubt, token: token(1, claims.TokenDoubt, "")},
		{name: "runs where Placement has it, and a host is silent", survey: guest(running, 1), silent: true, placed: claims.AllocatedHere, want: claims.VerdictOwn, token: token(1, claims.TokenHere, "me")},
		{name: "the record was saved", survey: guest(running, 1), record: token(5, claims.TokenHere, "me"), silent: true, want: claims.VerdictKeep, token: token(5, claims.TokenHere, "me")},
		{name: "the record before the last, and it was given away since", survey: guest(left, 1), behind: true, record: token(5, claims.TokenHere, "me"), answers: []api.Knowledge{here("b", 6)}, want: claims.VerdictElsewhere, token: token(6, claims.TokenSurrendered, "b")},
		{name: "gone from here, and given away since the record", survey: host.Surveyed{}, absent: true, behind: true, record: token(5, claims.TokenHere, "me"), answers: []api.Knowledge{here("b", 6)}, want: claims.VerdictElsewhere, token: token(6, claims.TokenSurrendered, "b")},
		{name: "the record before the last, and nobody knows", survey: guest(left, 1), behind: true, record: token(5, claims.TokenHere, "me"), want: claims.VerdictDoubt, token: token(5, claims.TokenDoubt, "")},
	} {
		t.Run(c.name, func(t *testing.T) {
			said := Told{Here: map[string]host.Surveyed{id: c.survey}, Answers: c.answers, Owners: map[string]guard.OwnerState{}, Placed: map[string]claims.Allocated{}}
			if c.absent {
				delete(said.Here, id)
			}
			if c.placed != 0 {
				said.Placed[id] = c.placed
			}
			if c.owner != "" {
				said.Owners[id] = c.owner
			}
			if c.silent {
				said.Silent = []string{"c: no answer"}
			}
			g := Judge("me", id, said, func() (claims.Instance, bool) {
				return claims.Instance{UUID: id, Name: "g", Token: c.record}, c.record.State != ""
			}, c.behind)
			if g.Verdict != c.want {
				t.Fatalf("%s (%s) by %+v, want %s", g.Verdict, g.Why, g.facts, c.want)
			}
			r, put := g.Restored("me")
			if put != (c.want != claims.VerdictStranger) {
				t.Fatalf("put back: %v", put)
			}
			if diff := cmp.Diff(c.token, r.Instance.Token); put && diff != "" {
				t.Errorf("token (-want +got):\n%s", diff)
			}
			if r.Absent != c.absent {
				t.Errorf("absent: %v", r.Absent)
			}
			if arrives := r.Move.Migration != "" && r.Move.Attempt == 2 && r.Context != nil; arrives != c.arrives || r.Accepted != c.accepted {
				t.Errorf("move %+v, accepted %v; want %v and %v", r.Move, r.Accepted, c.arrives, c.accepted)
			}
		})
	}
}

// A guest that waits to be confirmed, of which one of its two hosts has lost its ledger.
func TestJudge_PutsBackWhatWaitsToBeConfirmed(t *testing.T) {
	const id, move = "00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002"
	x := &claims.MigrationContext{Migration: move, Instance: id, Source: "a", Destination: "b", OldPowerState: "running"}
	moved := api.KnownMove{Migration: move, Instance: id, Attempt: 1, Source: "a", Destination: "b", Context: x, Kind: claims.KindResize, Finished: true}
	there := api.Knowledge{Host: "b", Instances: []api.KnownInstance{{UUID: id, Token: claims.Token{Epoch: 2, State: claims.TokenHere, Holder: "b", Migration: move}}}, Moves: []api.KnownMove{moved}}
	kept := api.Knowledge{Host: "a", Instances: []api.KnownInstance{{UUID: id, Token: claims.Token{Epoch: 2, State: claims.TokenSurrendered, Holder: "b", Migration: move}}}, Moves: []api.KnownMove{moved}}
	confirmed := there
	confirmed.Moves = nil
	owner := claims.Owner{Instance: id, Migration: move, Attempt: 1, Kind: claims.KindResize}
	commit := &migration.Commit{Instance: id, Migration: move, Attempt: 1, Epoch: 2, From: "a", To: "b", Power: "running"}
	for _, tt := range []struct {
		name    string
		self    string
		domain  claims.Domain
		record  claims.Token // saved; zero for none
		answers []api.Knowledge
		want    claims.Restored // without guest and what it uses
	}{
		{"the source's", "a", claims.DomainOff, claims.Token{}, []api.Knowledge{there}, claims.Restored{Move: owner, Context: x, Left: commit}},
		{"the source's, with its record", "a", claims.DomainOff, claims.Token{Epoch: 2, State: claims.TokenSurrendered, Holder: "b", Migration: move}, []api.Knowledge{there},
			claims.Restored{Move: owner, Context: x, Left: commit}},
		{"the source's, and it is confirmed there", "a", claims.DomainOff, claims.Token{}, []api.Knowledge{confirmed}, claims.Restored{}},
		{"the destination's", "b", claims.DomainRunning, claims.Token{}, []api.Knowledge{kept}, claims.Restored{Move: owner, Context: x, Accepted: true, Finished: true}},
		{"the destination's, its user has stopped it", "b", claims.DomainOff, claims.Token{}, []api.Knowledge{kept}, claims.Restored{Move: owner, Context: x, Accepted: true, Finished: true}},
		{"the destination's, with its record", "b", claims.DomainRunning, claims.Token{Epoch: 2, State: claims.TokenHere, Holder: "b", Migration: move}, []api.Knowledge{kept},
			claims.Restored{Move: owner, Context: x, Finished: true}},
		{"the destination's, which has got it again since", "b", claims.DomainRunning, claims.Token{Epoch: 4, State: claims.TokenHere, Holder: "b"}, []api.Knowledge{kept}, claims.Restored{}},
	} {
		survey := host.Surveyed{Domain: tt.domain, Marked: true, Instance: claims.Instance{UUID: id, Name: "g", Token: claims.Token{Epoch: 1}}}
		said := Told{Here: map[string]host.Surveyed{id: survey}, Answers: tt.answers, Owners: map[string]guard.OwnerState{}, Placed: map[string]claims.Allocated{}}
		g := Judge(tt.self, id, said, func() (claims.Instance, bool) {
			return claims.Instance{UUID: id, Name: "g", Token: tt.record}, tt.record.State != ""
		}, false)
		got, put := g.Restored(tt.self)
		if !put {
			t.Errorf("%s: nothing is put back: %s (%s)", tt.name, g.Verdict, g.Why)
		}
		if k := got.Instance.Token; (k.State == claims.TokenHere) != (tt.self == "b") || k.Epoch < 2 {
			t.Errorf("%s: token %+v", tt.name, k)
		}
		got.Instance, got.Found = claims.Instance{}, claims.Found{}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}
