package api

import (
	"fmt"
	"strings"
	"testing"

	"berth/migration"

	"github.com/google/go-cmp/cmp"
)

// TestParty_TheWholeTable enumerates it, holds each answer against the laws, and the
// whole against a page that people have read.
func TestParty_TheWholeTable(t *testing.T) {
	var out strings.Builder
	for s := range migration.Accesses {
		for r := range recordeds {
			for by := range relations {
				if r == recordedNothing && by != relationNone || r == recordedOrdinary && by == relationConductor {
					continue // cannot be
				}
				fmt.Fprintf(&out, "%-11s %-8s %-11s", sideWords[s], []string{"nothing", "ordinary", "apart"}[r], []string{"-", "source", "destination", "conductor"}[by])
				for n := range namings {
					got := decideParty(s, r, by, n)
					fmt.Fprintf(&out, " %-5s", []string{"no", "yes", "right"}[got])
					conducts := r == recordedOrdinary && by == relationSource || r == recordedApart && by == relationConductor
					switch {
					case got == no:
					case n == namesOther:
						t.Errorf("%s is answered to a host that says another one conducts", sideWords[s])
					case got == byRight && (r != recordedNothing || s == migration.AccessConductor || s == migration.AccessShipment):
						t.Errorf("%s is answered by a right, where nothing but the record counts", sideWords[s])
					case r == recordedNothing && (s == migration.AccessConductor || got == yes && s != migration.AccessDestination && s != migration.AccessShipment):
						t.Errorf("%s is answered to a stranger", sideWords[s])
					case r != recordedNothing && !conducts && !(s == migration.AccessShipment && r == recordedApart && by == relationSource):
						t.Errorf("%s is answered to a host that does not conduct", sideWords[s])
					}
				}
				out.WriteByte('\n')
			}
		}
	}
	want := strings.TrimPrefix(`
conductor   nothing  -           no    no    no    no    no   
conductor   ordinary -           no    no    no    no    no   
conductor   ordinary source      yes   yes   no    no    no   
conductor   ordinary destination no    no    no    no    no   
conductor   apart    -           no    no    no    no    no   
conductor   apart    source      no    no    no    no    no   
conductor   apart    destination no    no    no    no    no   
conductor   apart    conductor   yes   no    yes   no    no   
destination nothing  -           yes   yes   right yes   no   
destination ordinary -           no    no    no    no    no   
destination ordinary source      yes   yes   no    no    no   
destination ordinary destination no    no    no    no    no   
destination apart    -           no    no    no    no    no   
destination apart    source      no    no    no    no    no   
destination apart    destination no    no    no    no    no   
destination apart    conductor   yes   no    yes   yes   no   
shipment    nothing  -           yes   yes   no    no    no   
shipment    ordinary -           no    no    no    no    no   
shipment    ordinary source      yes   yes   no    no    no   
shipment    ordinary destination no    no    no    no    no   
shipment    apart    -           no    no    no    no    no   
shipment    apart    source      yes   yes   yes   yes   no   
shipment    apart    destination no    no    no    no    no   
shipment    apart    conductor   yes   no    yes   no    no   
look        nothing  -           right no    no    no    no   
look        ordinary -           no    no    no    no    no   
look        ordinary source      yes   yes   no    no    no   
look        ordinary destination no    no    no    no    no   
look        apart    -           no    no    no    no    no   
look        apart    source      no    no    no    no    no   
look        apart    destination no    no    no    no    no   
look        apart    conductor   yes   no    yes   no    no   
begin       nothing  -           no    no    right no    no   
begin       ordinary -           no    no    no    no    no   
begin       ordinary source      yes   yes   no    no    no   
begin       ordinary destination no    no    no    no    no   
begin       apart    -           no    no    no    no    no   
begin       apart    source      no    no    no    no    no   
begin       apart    destination no    no    no    no    no   
begin       apart    conductor   yes   no    yes   no    no   
forget      nothing  -           right no    no    no    no   
forget      ordinary -           no    no    no    no    no   
forget      ordinary source      yes   yes   no    no    no   
forget      ordinary destination no    no    no    no    no   
forget      apart    -           no    no    no    no    no   
forget      apart    source      no    no    no    no    no   
forget      apart    destination no    no    no    no    no   
forget      apart    conductor   yes   no    yes   no    no   
`, "\n")
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("columns: names nobody, the caller as source, the caller as conductor, the caller as evacuator, others (-want +got):\n%s", diff)
	}
}

var sideWords = map[migration.Access]string{migration.AccessConductor: "conductor", migration.AccessDestination: "destination", migration.AccessShipment: "shipment", migration.AccessLook: "look", migration.AccessBegin: "begin", migration.AccessForget: "forget"}

// TestParty_EveryVerbThatActsAtTheSourceNeedsItsRecord lists the verbs that a host without
// a record answers to somebody: none other may be among them.
func TestParty_EveryVerbThatActsAtTheSourceNeedsItsRecord(t *testing.T) {
	got := map[string]migration.Access{}
	for _, r := range table() {
		if name, ok := strings.CutPrefix(r.path, "/v1/verbs/"); ok && r.party != nil {
			got[name] = *r.party
		}
	}
	want := map[migration.Access][]string{
		migration.AccessLook: {"inspect", "check-source", "stream-status", "plan-change", "reaches"}, migration.AccessBegin: {"record-context"}, migration.AccessForget: {"drop-context"},
		migration.AccessShipment: {"write-disk", "shipped-so-far", "seal-disks"},
		migration.AccessDestination: {"check-destination", "claim", "renew-claim", "abort-claim", "pre-live-migration", "rollback-pre-live-migration", "accept-token", "destination-status", "finish-destination",
			"prep-resize", "rollback-prep-resize", "accept-handed", "finish-resize", "confirm-destination", "clean-up-reverted", "remove-copy",
			"prep-evacuation", "rollback-prep-evacuation", "accept-evacuated", "finish-evacuation"},
	}
	for side, names := range want {
		for _, name := range names {
			if have, ok := got[name]; !ok || have != side {
				t.Errorf("%s: %s (there: %v), want %s", name, sideWords[have], ok, sideWords[side])
			}
			delete(got, name)
		}
	}
	for name, side := range got {
		if side != migration.AccessConductor {
			t.Errorf("%s: %s, want it to be asked by who conducts, by the record alone", name, sideWords[side])
		}
	}
}
