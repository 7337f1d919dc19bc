package fault_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"berth/internal/fault"
)

func TestNew_KeepsCauseAndPrintsItOnce(t *testing.T) {
	err := fault.New(fault.Unavailable, "read domain %s: %w", "vm1", io.ErrUnexpectedEOF)
	if got, want := err.Error(), "read domain vm1: unexpected EOF"; got != want {
		t.Errorf("text %q, want %q", got, want)
	}
	if !errors.Is(err, io.ErrUnexpectedEOF) || !errors.Is(err, fault.Unavailable) || errors.Is(err, fault.Busy) {
		t.Errorf("chain of %v does not answer for its cause and kind", err)
	}
}

func TestKindOf(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want fault.Kind
	}{
		{nil, ""},
		{errors.New("plain"), fault.Internal},
		{fmt.Errorf("outer: %w", fault.Refuse(fault.DoesNotFit, "claim")), fault.DoesNotFit},
		{fmt.Errorf("outer: %w", fault.Busy), fault.Busy},
		{fmt.Errorf("call: %w", context.DeadlineExceeded), fault.Unavailable},
		{fault.New(fault.Undone, "move: %w", fault.New(fault.NotFound, "peer")), fault.Undone},
	} {
		if got := fault.KindOf(tt.err); got != tt.want {
			t.Errorf("KindOf(%v) = %q, want %q", tt.err, got, tt.want)
		}
	}
}

func TestReasonsOf_FindsAllInAJoinedTree(t *testing.T) {
	a := fault.Refuse(fault.DoesNotFit, "host a", fault.Reason{Code: "memory_short"}, fault.Reason{Code: "vcpu_short"})
	b := fault.Refuse(fault.DoesNotFit, "host b", fault.Reason{Code: "disk_short"})
	got := fault.ReasonsOf(fmt.Errorf("all refuse: %w", errors.Join(a, b)))
	if len(got) != 3 || got[2].Code != "disk_short" {
		t.Errorf("reasons %v, want three in order", got)
	}
}

func TestHasReason_LooksInAJoinedTree(t *testing.T) {
	err := errors.Join(io.EOF, fault.Wrap(fault.Refuse(fault.Busy, "move", fault.Reason{Code: "job"}), "ask"))
	if !fault.HasReason(err, "job") || fault.HasReason(err, "other") || fault.HasReason(nil, "job") {
		t.Errorf("the reasons of %v", err)
	}
}

func TestRemedyOf_TakesTheFirstThatIsThere(t *testing.T) {
	err := fault.Refuse(fault.Busy, "move", fault.Reason{Code: "job"}, fault.Reason{Code: "disk", Change: "wait"}, fault.Reason{Code: "page", Change: "stop it"})
	if got := fault.RemedyOf(err); got != "wait" {
		t.Errorf("%q", got)
	}
	if got := fault.RemedyOf(io.EOF); got != "" {
		t.Errorf("of no reason: %q", got)
	}
}

func TestRefusal_TellsAllAndNamesWhatIsHardestToChange(t *testing.T) {
	var no fault.Refusal
	if err := no.Err("check"); err != nil {
		t.Errorf("without reasons: %v", err)
	}
	no.Add(fault.Busy) // no reason
	no.Add(fault.DoesNotFit, fault.Reason{Code: "room"})
	if err := no.Take(fault.New(fault.Exists, "it is there")); err != nil {
		t.Errorf("take a refusal: %v", err)
	}
	if err := no.Take(fault.New(fault.Unavailable, "no answer")); !errors.Is(err, fault.Unavailable) {
		t.Errorf("take what is no refusal: %v", err)
	}
	err := no.Err("check %s", "vm1")
	if !errors.Is(err, fault.DoesNotFit) || len(fault.ReasonsOf(err)) != 2 || fault.ReasonsOf(err)[1].Message != "it is there" {
		t.Errorf("refused with %v, reasons %v", err, fault.ReasonsOf(err))
	}
}
