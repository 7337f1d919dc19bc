package api

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestParty_TheWholeTable enumerates it, holds each answer against the laws, and the
// whole against a page that people have read.
func TestParty_TheWholeTable(t *testing.T) {
	var out strings.Builder
	for s := range sides {
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
					case got == byRight && (r != recordedNothing || s == sideConductor || s == sideShipment):
						t.Errorf("%s is answered by a right, where nothing but the record counts", sideWords[s])
					case r == recordedNothing && (s == sideConductor || got == yes && s != sideDestination && s != sideShipment):
						t.Errorf("%s is answered to a stranger", sideWords[s])
					case r != recordedNothing && !conducts && !(s == sideShipment && r == recordedApart && by == relationSource):
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

var sideWords = map[side]string{sideConductor: "conductor", sideDestination: "destination", sideShipment: "shipment", sideLook: "look", sideBegin: "begin", sideForget: "forget"}

// TestParty_EveryVerbThatActsAtTheSourceNeedsItsRecord lists the verbs that a host without
// a record answers to somebody: none other may be among them.
func TestParty_EveryVerbThatActsAtTheSourceNeedsItsRecord(t *testing.T) {
	got := map[string]side{}
	for _, r := range table() {
		if name, ok := strings.CutPrefix(r.path, "/v1/verbs/"); ok && r.party != nil {
			got[name] = *r.party
		}
	}
	want := map[side][]string{
		sideLook: {"inspect", "check-source", "stream-status", "plan-change", "reaches"}, sideBegin: {"record-context"}, sideForget: {"drop-context"},
		sideShipment: {"write-disk", "shipped-so-far", "seal-disks"},
		sideDestination: {"check-destination", "claim", "renew-claim", "abort-claim", "pre-live-migration", "rollback-pre-live-migration", "accept-token", "destination-status", "finish-destination",
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
		if side != sideConductor {
			t.Errorf("%s: %s, want it to be asked by who conducts, by the record alone", name, sideWords[side])
		}
	}
}
