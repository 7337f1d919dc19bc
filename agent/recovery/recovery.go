// Package recovery judges what becomes of each instance after its host's ledger was lost: what libvirt,
// other hosts, owner files and Placement say goes in, what is put back into the ledger comes out. It
// asks nobody and writes nothing; the table of verdicts is claims.Facts.Judge.
package recovery

import (
	"cmp"

	"berth/agent/api"
	"berth/agent/guard"
	"berth/agent/host"
	"berth/claims"
	"berth/migration"
)

// Told is what the parties say about all guests in one round.
type Told struct {
	Here    map[string]host.Surveyed    // by instance: libvirt
	Answers []api.Knowledge             // of hosts whose ledgers are whole
	Silent  []string                    // hosts that did not answer, or whose own ledger is not whole, each with why
	Owners  map[string]guard.OwnerState // owner files of this boot
	Placed  map[string]claims.Allocated // what Placement has; absent for unknown
	Project map[string][2]string        // project and user of an allocation
}

// Judged is one guest of a lost ledger: the facts, the verdict on them, and what is
// needed to put it back.
type Judged struct {
	facts   claims.Facts
	Verdict claims.Verdict
	Why     string

	survey host.Surveyed // zero for a guest that libvirt does not have
	there  bool
	record claims.Instance // the ledger's; zero for none
	known  bool
	epoch  uint64        // the highest that is known to have been this host's
	owner  string        // of OthersOwn
	token  claims.Token  // of the owner's word
	move   api.KnownMove // of an open move; zero for none
	given  claims.Token  // the token that was surrendered to this host; zero for none
	ids    [2]string     // project and user, by Placement
}

// Judge joins what was told of one guest. It is a function of values: record is read
// once.
func Judge(self, id string, t Told, record func() (claims.Instance, bool), behind bool) Judged {
	g := Judged{}
	g.survey, g.there = t.Here[id]
	g.record, g.known = record()
	g.ids = t.Project[id]
	g.facts = claims.Facts{Domain: claims.DomainNone, Record: claims.RecordNone, Others: claims.OthersNone, Way: claims.WayNone, Allocated: claims.AllocatedUnknown}
	f := &g.facts
	if where, ok := t.Placed[id]; ok {
		f.Allocated = where
	}
	if g.known {
		switch g.record.Token.State {
		case claims.TokenHere:
			f.Record = claims.RecordHere
			if behind {
				f.Record = claims.RecordBehind
			}
			g.epoch = g.record.Token.Epoch
		case claims.TokenSurrendered:
			f.Record = claims.RecordGone
		}
	}
	g.hear(self, id, t)
	if g.there {
		f.Domain = g.survey.Domain
		// A copy that a move has brought whole stands paused like one whose user paused
		// it. Which of the two it is the move tells; without a word of one, a guest that
		// came by a migration is not taken for its user's.
		if g.survey.Paused && f.Domain == claims.DomainRunning &&
			(f.Way&(claims.WayIn|claims.WayGiven) != 0 || f.Record == claims.RecordNone && f.Way == claims.WayNone && g.survey.Moved != "") {
			f.Domain = claims.DomainHalfway
		}
	}
	// Who runs it has accepted it: the document's epoch is this host's then. Of a copy
	// it is what the move promises.
	if f.Domain == claims.DomainRunning {
		g.epoch = max(g.epoch, g.survey.Instance.Token.Epoch)
	}
	// An older copy of the ledger does not know what has come back since.
	if f.Record == claims.RecordGone && max(g.epoch, g.given.Epoch) > g.record.Token.Epoch {
		f.Record = claims.RecordNone
	}
	if g.owner != "" {
		f.Others = claims.OthersOwn
		if g.token.Epoch < max(g.epoch, g.given.Epoch) || f.Domain != claims.DomainRunning && g.token.Epoch+1 < g.survey.Instance.Token.Epoch {
			f.Others = claims.OthersLower
		}
	} else if len(t.Silent) > 0 {
		f.Others = claims.OthersSilent
	}
	f.Managed = g.survey.Marked || g.known || g.owner != "" || g.given.Epoch > 0 || f.Way != claims.WayNone ||
		f.Allocated == claims.AllocatedHere || t.Owners[id] != "" && t.Owners[id] != guard.OwnerGone
	g.Verdict, g.Why = f.Judge()
	return g
}

// hear takes the words of the other hosts about one guest: the highest epoch is
// right.
func (g *Judged) hear(self, id string, t Told) {
	for _, k := range t.Answers {
		for _, i := range k.Instances {
			if i.UUID != id {
				continue
			}
			switch {
			case i.Token.State == claims.TokenHere && i.Token.Epoch > g.token.Epoch:
				g.owner, g.token = k.Host, i.Token
			case i.Token.State != claims.TokenSurrendered:
			case i.Token.Holder == self && i.Token.Epoch > g.given.Epoch:
				g.given = i.Token
			case i.Token.Holder != self && i.Token.Epoch > g.token.Epoch:
				// Given to a third, which may have accepted it or may yet.
				g.owner, g.token = i.Token.Holder, i.Token
			}
		}
		for _, m := range k.Moves {
			if m.Instance != id {
				continue
			}
			switch self {
			case m.Destination:
				g.move, g.facts.Way = m, claims.WayIn
			case m.Source:
				if g.facts.Way == claims.WayNone {
					g.move, g.facts.Way = m, claims.WayOut
				}
			}
		}
	}
	if g.token.Epoch > 0 && g.given.Epoch >= g.token.Epoch {
		g.owner, g.token = "", claims.Token{} // what was surrendered is no claim to own it
	}
	if g.given.Epoch > 0 && g.owner == "" {
		g.facts.Way = claims.WayGiven
	}
}

// Restored is what is put back; false where nothing is.
func (g Judged) Restored(self string) (claims.Restored, bool) {
	out := claims.Restored{Instance: g.survey.Instance, Found: g.survey.Found}
	if g.known {
		out.Instance = g.record
	} else if g.ids[0] != "" {
		out.Instance.ProjectID, out.Instance.UserID = g.ids[0], g.ids[1]
	}
	if g.known || g.survey.Marked {
		// What was asked for it may be more than its disks can grow to.
		out.Found.Resources.DiskGB = max(out.Found.Resources.DiskGB, out.Instance.Flavor.DiskGB)
	}
	if !g.there {
		// Of a guest that libvirt does not have nothing is counted; a token that is
		// somebody else's by a higher epoch is not this host's any more.
		if !g.known || g.Verdict != claims.VerdictElsewhere {
			return claims.Restored{}, false
		}
		out.Instance.Token, out.Absent = g.elsewhere(), true
		return out, true
	}
	inbound := g.move.Migration != "" && g.move.Destination == self
	bring := func() {
		if inbound {
			out.Move = claims.Owner{Instance: out.Instance.UUID, Migration: g.move.Migration, Attempt: g.move.Attempt, Kind: cmp.Or(g.move.Kind, claims.KindLiveMigration)}
			out.Context = g.move.Context
			out.Finished = g.move.Finished && g.move.Context != nil && g.given.Epoch > 0
		}
	}
	switch g.Verdict {
	case claims.VerdictKeep:
		switch g.record.Token.State {
		case claims.TokenSurrendered:
			g.leave(&out, g.record.Token)
		case claims.TokenHere:
			g.wait(&out, bring)
		}
		return out, true
	case claims.VerdictOwn:
		if g.known && g.record.Token.State == claims.TokenHere && g.record.Token.Epoch >= max(g.epoch, g.given.Epoch) {
			g.wait(&out, bring)
			return out, true
		}
		out.Instance.Token = claims.Token{
			Epoch: max(g.epoch, g.given.Epoch, g.survey.Instance.Token.Epoch, 1), State: claims.TokenHere, Holder: self, Migration: g.survey.Moved,
		}
		if g.given.Epoch > 0 {
			out.Instance.Token.Epoch, out.Instance.Token.Migration = max(g.epoch, g.given.Epoch), g.given.Migration
			bring()
			out.Accepted = inbound
		}
	case claims.VerdictArriving:
		out.Instance.Token = claims.Token{} // the move's to give
		bring()
		if !inbound {
			// The source has given it, and knows of no open move any more.
			out.Instance.Token = claims.Token{Epoch: g.given.Epoch, State: claims.TokenDoubt}
		}
	case claims.VerdictElsewhere:
		out.Instance.Token = g.elsewhere()
		g.leave(&out, out.Instance.Token)
	case claims.VerdictDoubt:
		out.Instance.Token = claims.Token{Epoch: max(g.epoch, g.token.Epoch, g.given.Epoch, g.survey.Instance.Token.Epoch), State: claims.TokenDoubt}
	default:
		return claims.Restored{}, false
	}
	return out, true
}

// elsewhere is the token by the word of the host that has it.
func (g Judged) elsewhere() claims.Token {
	return claims.Token{Epoch: g.token.Epoch, State: claims.TokenSurrendered, Holder: g.owner, Migration: g.token.Migration}
}

// leave puts back what this host keeps of a guest that a cold move took to the token's
// holder, by the holder's word that it waits there.
func (g Judged) leave(out *claims.Restored, k claims.Token) {
	m := g.move
	if !m.Finished || m.Context == nil || m.Source != m.Context.Source || m.Destination != k.Holder || m.Migration != k.Migration {
		return
	}
	out.Move = claims.Owner{Instance: m.Instance, Migration: m.Migration, Attempt: m.Attempt, Kind: m.Kind}
	out.Context = m.Context
	out.Left = &migration.Commit{
		Instance: m.Instance, Migration: m.Migration, Attempt: m.Attempt, Epoch: k.Epoch, From: m.Source, To: m.Destination, Power: m.Context.OldPowerState,
	}
}

// wait puts back that a guest of this host, whose record was not lost, waits to have
// confirmed what brought it, by the word of the host that it came from.
func (g Judged) wait(out *claims.Restored, bring func()) {
	if k := g.record.Token; g.move.Finished && g.given == (claims.Token{Epoch: k.Epoch, State: claims.TokenSurrendered, Holder: k.Holder, Migration: k.Migration}) {
		bring()
	}
}
