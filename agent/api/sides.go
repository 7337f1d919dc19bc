package api

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
)

// Settled is what an operator's word has come to.
type Settled struct {
	Migration string `json:"migration"`
	Instance  string `json:"instance_uuid"`
	GuestIsAt string `json:"guest_is_at"`
	By        string `json:"by"`
	Host      string `json:"host"` // that took the word
	// Record is the move, where this host conducts it; null at a destination.
	Record *migration.Migration `json:"record"`
}

// Yield is the epoch with which the calling host has a guest's token.
type Yield struct {
	Epoch uint64 `json:"epoch"`
}

// sideRows are what the two hosts of a move ask of each other without its conductor,
// and an operator's word.
func sideRows() []route {
	fate := write(http.MethodPost, "/v1/verbs/attempt-fate", "verb-attempt-fate",
		"What became of one attempt, asked of the host that the guest leaves by the one that it goes to, or by a third that conducts; and of that third by the two.", hostsOnly,
		func(s *Server, r *http.Request, in operation.Request[operation.None]) (migration.AttemptFate, error) {
			who := callerOf(r.Context()).name
			// A migration of which nothing is recorded is nobody's secret.
			if p, known := s.svc.Parties.Parties(in.Ref.Migration, ""); known && p.Destination != who && p.Conductor != who {
				return migration.AttemptFate{}, notAParty(who, in.Ref.Migration, p.Destination)
			}
			return s.svc.Sides.AttemptFate(r.Context(), in.Ref)
		})
	fate.timeout = quick
	yield := write(http.MethodPost, "/v1/verbs/yield-token", "verb-yield-token",
		"The calling host, the other one of the move, has the token with a higher epoch: end what is here.", hostsOnly,
		func(s *Server, r *http.Request, in operation.Request[Yield]) (nothing, error) {
			who := callerOf(r.Context()).name
			if err := MayYield(s.svc.Parties, who, in.Ref.Migration); err != nil {
				return nothing{}, err
			}
			return nothing{}, s.svc.Sides.YieldToken(r.Context(), in.Ref, in.Args.Epoch, who)
		})
	settle := write(http.MethodPost, "/v1/migrations/{migration}/settle", "migration-settle",
		"An operator who has checked says where the guest of a move in doubt is; refused where the facts contradict it.", operators,
		func(s *Server, r *http.Request, in migration.Settlement) (Settled, error) {
			in.By = callerOf(r.Context()).name
			return s.svc.Settle.Settle(r.Context(), r.PathValue("migration"), in)
		})
	return []route{fate, yield, settle}
}

func notAParty(who, id, want string) error {
	return fault.Refuse(fault.Forbidden, "let host "+who+" ask about migration "+id, fault.Reason{
		Code: "not_a_party", Message: "host " + who + " is not a host that this migration is recorded with (" + want + ")", Want: want, Have: who,
	})
}

// Settler takes an operator's word on a move.
type Settler interface {
	// Settle returns when the word is durable and what it decides has begun.
	// fault.NotFound for a migration of which neither a record nor an arrival is here.
	Settle(ctx context.Context, migration string, s migration.Settlement) (Settled, error)
}

// fateWait bounds the question: a guest may stand still.
const fateWait = 10 * time.Second

// AttemptFate implements migration.Side.
func (c *Client) AttemptFate(ctx context.Context, ref migration.Ref) (out migration.AttemptFate, err error) {
	return out, c.verb(ctx, "attempt-fate", fateWait, alone(ref), &out)
}

// YieldToken implements migration.Side: to is the calling host, by its certificate.
func (c *Client) YieldToken(ctx context.Context, ref migration.Ref, epoch uint64, _ string) error {
	return c.verb(ctx, "yield-token", slowVerb, with(ref, Yield{Epoch: epoch}), nil)
}

// SettleMigration gives an operator's word; safe to repeat.
func (c *Client) SettleMigration(ctx context.Context, id string, s migration.Settlement) (out Settled, err error) {
	return out, c.do(ctx, http.MethodPost, "/v1/migrations/"+url.PathEscape(id)+"/settle", s, &out, repeatable)
}

var _ migration.Side = (*Client)(nil)
