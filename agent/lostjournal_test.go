package agent

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"berth/agent/api"
	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
)

// A source has lost its journal in the middle of a stream. A guest that is still there
// stays; one that has left is settled where its copy is. In the end it runs once, and
// ledgers and Placement agree where.
func TestLedger_AMoveWhoseJournalIsLost(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		left bool // the stream has ended before the agent is back
		at   string
	}{{"the guest is here", false, "host-a"}, {"the guest has left", true, "host-b"}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := newPair(t, time.Hour)
			id := p.guest("host-a", "guest")
			move := p.move(id, "host-a", "host-b")
			state := func(host string) driver.Domain {
				d, _ := p.fleet.Host(host).Domain(t.Context(), id)
				return d
			}
			p.until("the copy is there", func() bool { return state("host-b").State == driver.Paused })
			p.must(p.stop["host-a"]())
			if c.left {
				p.until("the guest has left", func() bool {
					p.fleet.Advance(50 * time.Millisecond)
					return !state("host-a").Active()
				})
			}
			p.must(os.Remove(filepath.Join(p.options["host-a"].Config.Agent.StateDir, ledgerFile)))
			p.clients["host-a"], p.stop["host-a"] = start(p.T, p.options["host-a"])
			p.until("the ledger is rebuilt", func() bool {
				p.fleet.Advance(50 * time.Millisecond)
				_, there := p.ledger("host-a")[id]
				return there
			})
			if c.left {
				if token := p.ledger("host-a")[id].Token; token.State != claims.TokenDoubt {
					t.Fatalf("token %+v, want it in doubt", token)
				}
				_, err := p.clients["host-b"].SettleMigration(t.Context(), move, migration.Settlement{GuestIsAt: "host-b", Why: "its copy is there alone"})
				p.must(err)
			}
			p.damage("host-b", nil) // one that was just started asks at once
			p.until("it runs, and one ledger has its token", func() bool {
				p.fleet.Advance(50 * time.Millisecond)
				a, b := p.ledger("host-a")[id].Token.State, p.ledger("host-b")[id].Token.State
				return p.fleet.RunningCopies(id) == 1 && (a == claims.TokenHere) != (b == claims.TokenHere)
			})
			if c.left { // nobody conducts the move who would clean up
				p.until("nothing is left at the source", func() bool {
					_, there := p.ledger("host-a")[id]
					return !there && state("host-a").UUID == ""
				})
			}
			got := p.ledger(c.at)[id]
			if got.Token.State != claims.TokenHere || len(got.Claims) != 1 || p.fleet.Running(id)[0] != c.at {
				t.Errorf("%s has %+v, and it runs at %v", c.at, got, p.fleet.Running(id))
			}
			p.until("Placement has it there alone", func() bool {
				_, err := p.clients[c.at].Audit(t.Context(), api.AuditRequest{Heal: true, All: true})
				if errors.Is(err, fault.Unavailable) || errors.Is(err, fault.Busy) {
					return false // its ledger is being rebuilt still
				}
				p.must(err)
				held := p.held()[id]
				return len(held) == 1 && held[c.at] != nil
			})
		})
	}
}
