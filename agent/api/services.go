package api

import (
	"context"

	"berth/agent/host/fileusers"

	"berth/migration"
)

// Services are what the API serves. All are set before the server is made.
type Services struct {
	Agent      Agent
	Instances  Instances
	Claims     Claims
	Migrations Migrations
	Plans      Plans
	// Verbs is the local host; Parties says which hosts a migration is between.
	Verbs   migration.Host
	Parties Parties
	// Moves is Parties for a migration that is named by its uuid, or by the name or uuid of its
	// instance: also one that this host conducts and has nothing else of. It may ask libvirt for the
	// name. nil for Parties alone.
	Moves   func(ctx context.Context, ref string) (Between, bool)
	Rights  Rights // nil where nobody is given any but by certificate
	Guard   Guard
	Foreign Foreign
	// Sides answers the other host of a move without its conductor; Settle takes an
	// operator's word on one.
	Sides  migration.Side
	Settle Settler
	Audits Audits
	// Deaths, Fleet, Drains and Doctor are nil in an agent that has none of them: what is
	// asked of them is refused.
	Deaths Deaths
	Fleet  Fleet
	Drains Drains
	Doctor Doctor
	// Peer gives a client of another host, for requests that are passed on;
	// fault.NotFound for a name that no peer has.
	Peer func(name string) (*Client, error)
}

// Agent is the daemon's own answers. None blocks on anything but memory, except
// Hosts and those of aggregates, which ask Placement.
type Agent interface {
	Status(ctx context.Context) (Status, error)
	Host(ctx context.Context) (HostInfo, error)
	Hosts(ctx context.Context) ([]HostEntry, error)
	// SetHost is durable when it returns; Placement follows as soon as it answers.
	SetHost(ctx context.Context, r SetHost) (HostState, error)
	// Aggregates and ChangeAggregates ask Placement, which alone has them; they answer what
	// it has then.
	Aggregates(ctx context.Context) (HostAggregates, error)
	ChangeAggregates(ctx context.Context, r ChangeAggregates) (HostAggregates, error)
	// Known is from the ledger alone; from is the host that asks.
	Known(ctx context.Context, from string) (Knowledge, error)
	// FilesUsed says which instances of this host use files; it changes nothing.
	FilesUsed(ctx context.Context, q FileQuestion) ([]fileusers.Reply, error)
}

// Instances are the guests of this host. ref is a name or a uuid.
type Instances interface {
	Create(ctx context.Context, r CreateInstance) (Instance, error)
	Adopt(ctx context.Context, r AdoptInstances) (AdoptedList, error)
	// List gives what is known beside the error that kept the rest away; with hidden the
	// records too that another host's is shown in place of.
	List(ctx context.Context, hidden bool) ([]Instance, error)
	Show(ctx context.Context, ref string) (InstanceDetail, error)
	Start(ctx context.Context, ref string, o StartInstance) (Instance, error)
	Stop(ctx context.Context, ref string, o StopInstance) (Instance, error)
	Delete(ctx context.Context, ref string, o DeleteInstance) (Deleted, error)
}

// Claims are what is held on this host. ref is a claim's uuid, the first eight
// characters of it or more, or an instance's name or uuid.
type Claims interface {
	List(ctx context.Context) ([]Claim, error)
	Show(ctx context.Context, ref string) (Claim, error)
	Explain(ctx context.Context, ref string) (Explanation, error)
}

// Migrations are the moves and changes that this host conducts. A request about one that
// another host conducts, and of which this one has the other side, is passed on to there,
// once. ref is a migration's uuid, or the name or uuid of a guest that is on one.
type Migrations interface {
	// Start asks for a guest of this host to be moved or changed; of one that is
	// elsewhere it passes the request on, and the record's source_compute says where. It
	// returns when the migration is durable, not when it is over.
	Start(ctx context.Context, r Migrate) (migration.Migration, error)
	List(ctx context.Context) ([]migration.Migration, error)
	Get(ctx context.Context, ref string) (migration.Migration, error)
	Abort(ctx context.Context, ref string) (migration.Migration, error)
	// Set and ForceComplete change a live migration on its way; fault.Forbidden, with the
	// reason, where nothing of it can be changed.
	Set(ctx context.Context, ref string, in SetMigration) (migration.Migration, error)
	ForceComplete(ctx context.Context, ref string) (migration.Migration, error)
	// Confirm and Revert end a migration that is finished: the guest stays as it is, or
	// becomes what and where it was. They look for the guest on other hosts too, and
	// return when the word is durable.
	Confirm(ctx context.Context, ref string) (migration.Migration, error)
	Revert(ctx context.Context, ref string) (migration.Migration, error)
	// Watch gives the record now and at each change, and closes the channel when
	// the migration is over or ctx ends.
	Watch(ctx context.Context, ref string) (<-chan migration.Migration, error)
	// Stories are the steps and undos of every kind of move, from the code.
	Stories() []migration.Story
}

// Parties tells which hosts a migration is between, and which conducts it, by what this
// host itself has recorded, never by what a caller says: false when nothing is. A
// migration is named, or else the instance that has one.
type Parties interface {
	Parties(migration, instance string) (Between, bool)
}

// Between are the hosts of a migration. Conductor is the source where no other host
// conducts it. Instance is whose migration it is; empty where that is not recorded.
type Between struct{ Source, Destination, Conductor, Instance string }
