package api

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"berth/agent/guard"
	"berth/agent/host/external"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
)

// Guard answers libvirt's hook, from memory and the ledger only: libvirt waits.
type Guard interface {
	Guard(ctx context.Context, c guard.Call) (guard.Answer, error)
}

// Foreign is for migrations that Berth does not conduct.
type Foreign interface {
	// Hook answers a tool that conducts one; phase is one of external.Phases.
	Hook(ctx context.Context, migration, phase string, r external.HookRequest) (external.HookAnswer, error)
	// ReleaseOwnership gives the token of a guest that left by one to the host where it
	// runs now, if its own domain says that it left.
	ReleaseOwnership(ctx context.Context, ref migration.Ref, to string) (migration.Commit, error)
}

// guardWait is above guard.Deadline, which the hook itself sets.
const guardWait = 10 * time.Second

// guardPath is answered before the agent has settled: what it starts itself then is
// asked about too.
const guardPath = "/v1/guard"

// foreignRows are the routes of the guard, and of migrations by others' hands.
func foreignRows() []route {
	ask := write(http.MethodPost, guardPath, "guard", "May a guest start or arrive; asked by libvirt's hook.", callerLocal,
		func(s *Server, r *http.Request, in guard.Call) (guard.Answer, error) {
			a, err := s.svc.Guard.Guard(r.Context(), in)
			if a.Reasons == nil {
				a.Reasons = []fault.Reason{}
			}
			return a, err
		})
	ask.timeout = guardWait
	hook := write(http.MethodPut, "/v1/migrations/{migration}/hooks/{phase}", "migration-hook",
		"A tool tells what its own migration is about to do or has done: pre-live-migration, prep-resize and pre-rebuild-instance claim and prepare; resize-instance lets a source give its guest away; the others end or undo that.", operators,
		func(s *Server, r *http.Request, in external.HookRequest) (external.HookAnswer, error) {
			if err := tooLong(in.Instance, in.Source, in.Destination, in.FlavorName); err != nil {
				return external.HookAnswer{}, err
			}
			return s.svc.Foreign.Hook(r.Context(), r.PathValue("migration"), r.PathValue("phase"), in)
		})
	surrender := write(http.MethodPost, "/v1/verbs/surrender", "verb-surrender",
		"Give the token of a guest that left by a migration nobody here conducts to the calling host, where it runs.", hostsOnly,
		func(s *Server, r *http.Request, in operation.Request[operation.None]) (migration.Commit, error) {
			// To whoever calls, by its certificate, and to nobody else.
			return s.svc.Foreign.ReleaseOwnership(r.Context(), in.Ref, callerOf(r.Context()).name)
		})
	surrender.timeout = quick
	return []route{ask, hook, surrender}
}

// Guard asks about a start or an arrival. It is sent once: libvirt waits.
func (c *Client) Guard(ctx context.Context, call guard.Call) (out guard.Answer, err error) {
	return out, c.do(ctx, http.MethodPost, guardPath, call, &out, once)
}

// MigrationHook tells a phase of a tool's own migration; safe to repeat.
func (c *Client) MigrationHook(ctx context.Context, migration, phase string, r external.HookRequest) (out external.HookAnswer, err error) {
	return out, c.do(ctx, http.MethodPut, "/v1/migrations/"+url.PathEscape(migration)+"/hooks/"+url.PathEscape(phase), r, &out, repeatable)
}

// ReleaseOwnership asks a host for the token of a guest that left it and runs here; safe
// to repeat.
func (c *Client) ReleaseOwnership(ctx context.Context, ref migration.Ref) (out migration.Commit, err error) {
	return out, c.verb(ctx, "surrender", quickVerb, alone(ref), &out)
}
