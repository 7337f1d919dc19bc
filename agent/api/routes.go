package api

import (
	"context"
	"net/http"
	"reflect"
	"slices"
	"time"

	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
)

// How long a request may take. Slow ones make disks, run hooks (60 s each by
// default), or wait for a hypervisor's job to end.
const (
	quick = 30 * time.Second
	slow  = 10 * time.Minute
)

// route is one row of the table that the server routes by and the OpenAPI
// document is computed from.
type route struct {
	method, path string
	name         string // operationId
	summary      string
	allow        caller
	party        *migration.Access // of a host verb: who may ask it; see partyTable
	relayed      bool              // may be passed on to another host with ?host=NAME
	act          hostAct           // of a row that changes something, and that hosts may send too
	query        [][2]string       // parameters and what they mean, beside host
	timeout      time.Duration
	status       int          // of success
	in, out      reflect.Type // nil for no body
	// frameIn and frameOut say that such a body is a frame; see frameType.
	frameIn, frameOut bool
	serve             func(s *Server, r *http.Request, body any) (any, error)
	// events answers with server-sent events of type out; nil for a row that does not.
	events func(s *Server, w http.ResponseWriter, r *http.Request)
}

type nothing struct{}

// read makes a row that takes no body.
func read[Out any](method, path, name, summary string, allow caller, f func(s *Server, r *http.Request) (Out, error)) route {
	return route{
		method: method, path: path, name: name, summary: summary, allow: allow, timeout: quick, status: http.StatusOK,
		out:   reflect.TypeFor[Out](),
		serve: func(s *Server, r *http.Request, _ any) (any, error) { return f(s, r) },
	}
}

// write makes a row that takes a JSON body.
func write[In, Out any](method, path, name, summary string, allow caller, f func(s *Server, r *http.Request, in In) (Out, error)) route {
	return route{
		method: method, path: path, name: name, summary: summary, allow: allow, timeout: slow, status: http.StatusOK,
		in: reflect.TypeFor[In](), out: reflect.TypeFor[Out](),
		serve: func(s *Server, r *http.Request, body any) (any, error) { return f(s, r, *body.(*In)) },
	}
}

func (r route) withStatus(code int) route { r.status = code; return r }
func (r route) canRelay() route           { r.relayed = true; return r }

// asks documents a parameter in the path's query.
func (r route) asks(name, means string) route {
	r.query = append(r.query, [2]string{name, means})
	return r
}

// operationRow makes the row of a host operation.
func operationRow(op *migration.Operation) route {
	in, out := reflect.TypeOf(op.NewRequest()).Elem(), reflect.TypeOf(op.NewAnswer()).Elem()
	return route{
		method: http.MethodPost, path: "/v1/verbs/" + op.Name, name: "verb-" + op.Name, summary: op.Summary, allow: hostsOnly, party: &op.Access, timeout: op.Limit, status: http.StatusOK,
		in: in, out: out, frameIn: in == reflect.TypeFor[operation.Request[migration.DiskPiece]](), frameOut: out == reflect.TypeFor[migration.DiskPiece](),
		serve: func(s *Server, r *http.Request, body any) (any, error) {
			ref, in := op.Unpack(body)
			var who *migration.Named
			if op.Names != nil {
				n := op.Names(in)
				who = &n
			}
			if err := s.mayAsk(r.Context(), op.Access, ref, who); err != nil {
				return nil, err
			}
			return s.once(r, op.Name, body, func(ctx context.Context) (any, error) { return s.svc.Verbs.Ask(ctx, ref, op, in) })
		},
	}
}

// operationRows are the rows of host operations.
func operationRows() []route {
	out := []route{read(http.MethodGet, "/v1/verbs/describe", "verb-describe", "Who this host is.", everyone,
		func(s *Server, r *http.Request) (migration.Description, error) {
			return s.svc.Verbs.Describe(r.Context())
		})}
	for _, op := range operation.All() {
		out = append(out, operationRow(op))
	}
	return out
}

// mayAsk refuses an operation from a host that has no business with the migration; see party.
func (s *Server) mayAsk(ctx context.Context, access migration.Access, ref migration.Ref, n *migration.Named) error {
	if n != nil && n.Source == "" {
		return fault.Refuse(fault.Invalid, "read the request", fault.Reason{
			Code: "source_missing", Message: "the arguments do not name the source host", Change: "name it",
		})
	}
	return s.party(ctx, access, ref.Migration, ref.Instance, n)
}

// table is every route. It is computed, not kept: nothing registers itself.
func table() []route {
	rows := []route{
		read(http.MethodGet, "/v1/status", "status", "Is all well, and if not what, since when, what to do.", everyone,
			func(s *Server, r *http.Request) (Status, error) { return s.svc.Agent.Status(r.Context()) }).canRelay(),
		read(http.MethodGet, "/v1/host", "host-show", "This host: who it is, its hardware, what is used, how Placement stands.", everyone,
			func(s *Server, r *http.Request) (HostInfo, error) { return s.svc.Agent.Host(r.Context()) }).canRelay(),
		read(http.MethodGet, "/v1/hosts", "host-list", "Hosts that Placement and [peers] know.", operators,
			func(s *Server, r *http.Request) (HostList, error) {
				hosts, err := s.svc.Agent.Hosts(r.Context())
				return HostList{Hosts: hosts}, err
			}),

		read(http.MethodGet, "/v1/instances", "instance-list", "Guests of this host, managed or not.", everyone,
			func(s *Server, r *http.Request) (InstanceList, error) {
				list, err := s.svc.Instances.List(r.Context(), r.URL.Query().Get("hidden") == "true")
				if err != nil && len(list) == 0 {
					return InstanceList{}, err
				}
				out := InstanceList{Instances: list}
				if err != nil {
					out.Error = err.Error()
				}
				return out, nil
			}).canRelay().asks("hidden", "true lists the records too that are not shown, since another host's is."),
		write(http.MethodPost, "/v1/instances", "instance-create", "Claim, define and start a new guest.", operators,
			func(s *Server, r *http.Request, in CreateInstance) (Instance, error) {
				return s.svc.Instances.Create(r.Context(), in)
			}).withStatus(http.StatusCreated),
		write(http.MethodPost, "/v1/instances/adopt", "instance-adopt", "Take domains that are there already under claims; changes no guest.", operators,
			func(s *Server, r *http.Request, in AdoptInstances) (AdoptedList, error) {
				return s.svc.Instances.Adopt(r.Context(), in)
			}),
		read(http.MethodGet, "/v1/instances/{instance}", "instance-show", "One guest, by name or uuid.", everyone,
			func(s *Server, r *http.Request) (InstanceDetail, error) {
				return s.svc.Instances.Show(r.Context(), r.PathValue("instance"))
			}).canRelay(),
		write(http.MethodPost, "/v1/instances/{instance}/start", "instance-start", "Start a guest whose ownership token is here; with an operator's word also one that waits for the fleet's records.", operators,
			func(s *Server, r *http.Request, in StartInstance) (Instance, error) {
				if in.ConfirmOwnership != (in.Because != "") {
					return Instance{}, fault.Refuse(fault.Invalid, "start instance "+r.PathValue("instance"), fault.Reason{
						Code: "because_missing", Message: "a word that a guest is this host's is given with its reason, and a reason with the word", Change: "say confirm_ownership and because",
					})
				}
				in.By = CallerWords(r.Context())
				return s.svc.Instances.Start(r.Context(), r.PathValue("instance"), in)
			}),
		write(http.MethodPost, "/v1/instances/{instance}/stop", "instance-stop", "Power a guest off; its claim stays.", operators,
			func(s *Server, r *http.Request, in StopInstance) (Instance, error) {
				return s.svc.Instances.Stop(r.Context(), r.PathValue("instance"), in)
			}),
		write(http.MethodPost, "/v1/instances/{instance}/delete", "instance-delete", "Delete a guest: definition, allocation, claim; disks only when asked for and nobody else uses them. The answer names files that stay.", operators,
			func(s *Server, r *http.Request, in DeleteInstance) (Deleted, error) {
				return s.svc.Instances.Delete(r.Context(), r.PathValue("instance"), in)
			}),

		read(http.MethodGet, "/v1/claims", "claim-list", "What is held on this host.", everyone,
			func(s *Server, r *http.Request) (ClaimList, error) {
				list, err := s.svc.Claims.List(r.Context())
				if err != nil {
					return ClaimList{}, err
				}
				status, err := s.svc.Agent.Status(r.Context())
				return ClaimList{Claims: list, Usage: status.Usage}, err
			}).canRelay(),
		read(http.MethodGet, "/v1/claims/{claim}", "claim-show", "One claim, by its uuid or its instance's.", everyone,
			func(s *Server, r *http.Request) (Claim, error) {
				return s.svc.Claims.Show(r.Context(), r.PathValue("claim"))
			}).canRelay(),
		read(http.MethodGet, "/v1/claims/{claim}/explanation", "claim-explain", "What a claim holds, cell by cell, beside what was asked.", everyone,
			func(s *Server, r *http.Request) (Explanation, error) {
				return s.svc.Claims.Explain(r.Context(), r.PathValue("claim"))
			}).canRelay(),

		read(http.MethodGet, "/v1/migrations", "migration-list", "Moves that this host conducts or conducted, newest first.", everyone,
			func(s *Server, r *http.Request) (MigrationList, error) {
				list, err := s.svc.Migrations.List(r.Context())
				return MigrationList{Migrations: list}, err
			}).canRelay(),
		write(http.MethodPost, "/v1/migrations", "migrate", "Move a guest, live or cold, resize or rebuild it; answers when the migration is durable. Asked of a host that does not have the guest, it is passed on. Or evacuate a guest of a dead host to another: that is an operator's to ask, and the asked host conducts it.", everyone,
			func(s *Server, r *http.Request, in Migrate) (migration.Migration, error) {
				if err := tooLong(in.Instance, in.Destination, in.Migration, in.MigrationType, in.FlavorName); err != nil {
					return migration.Migration{}, err
				}
				if err := operatorsWord(r.Context(), in); err != nil {
					return migration.Migration{}, err
				}
				return s.svc.Migrations.Start(r.Context(), in)
			}).withStatus(http.StatusAccepted).canRelay(),
		read(http.MethodGet, "/v1/migrations/{migration}", "migration-show", "One move, by its uuid or its guest's name.", everyone,
			func(s *Server, r *http.Request) (migration.Migration, error) {
				return s.svc.Migrations.Get(r.Context(), r.PathValue("migration"))
			}).canRelay(),
		write(http.MethodPost, "/v1/migrations/{migration}/abort", "migration-abort", "Give a move up and put everything back; refused after the point of no return.", everyone,
			func(s *Server, r *http.Request, _ nothing) (migration.Migration, error) {
				return s.svc.Migrations.Abort(r.Context(), r.PathValue("migration"))
			}).canRelay().asAct(actAbort),
		{
			method: http.MethodGet, path: "/v1/migrations/{migration}/watch", name: "migration-watch",
			summary: "The record now and at each change, as server-sent events named migration; then one named end.",
			allow:   everyone, status: http.StatusOK, out: reflect.TypeFor[migration.Migration](), relayed: true,
			events: eventsOf("migration", func(s *Server, r *http.Request) (<-chan migration.Migration, error) {
				return s.svc.Migrations.Watch(r.Context(), r.PathValue("migration"))
			}),
		},
	}
	rows = slices.Concat(rows, planRows(), controlRows(), operationRows(), confirmRows(), sideRows(), foreignRows(), hostRows(), deathRows(), fleetRows(), drainRows(), doctorRows(), aggregateRows(), auditRows(), knownRows(), fileRows())
	return append(rows, read(http.MethodGet, "/v1/openapi.json", "openapi", "This document.", everyone,
		func(*Server, *http.Request) (any, error) { return OpenAPI(), nil }))
}
