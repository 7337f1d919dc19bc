// Package embedded keeps the records of package fleet beside an embedded Placement: in a
// bucket of its own of the same database, served by the same process, below Path. It is for
// `berth placement`, which serves it (Server), and for agents that have no etcd (Client).
//
//	placement.db
//	├── fleet
//	│   └── <key>      {"value":"…","revision":1790000000000001}
//	└── fleet_mark
//	    ├── revision     the last one, of deletions too
//	    ├── incarnation  of these records; see Server.Renew
//	    └── sessions     the runs of servers of this database; see Server.Has
//
// It reads the bucket once, when it is opened, and alone writes it. It decides in memory, one
// commit after the other, and answers nobody before what he did or saw is durable.
//
// A revision is the time of its commit in microseconds, or the one after the last where the
// clock stands or went back. So those of a database that was restored from a backup go on after
// all that anybody has read of it before, and a condition that was read before the backup was
// restored cannot hold by chance.
//
// Every answer tells the incarnation of the records and the last revision. The incarnation is new
// where the database has none (it is new, or was restored), where it is an older copy of itself, or
// where a host has seen a later revision of it. Since revisions follow the clock, those of a database
// that was rolled back soon pass the later one. So each run of a server has a name, which every
// answer tells, and Has says whether a revision that a run has told is in the database still.
//
// It has no leases: with one server nobody could tell its death from a host's.
package embedded

// Path is where the records are served, beside Placement's own paths. A request is a POST of
// one JSON document to Path + "get", "page", "commit", "renew" or "has"; "list"
// is what older clients ask.
const Path = "/berth/fleet/v1/"

// Bucket is the bucket of the database.
const Bucket = "fleet"

const markBucket, markKey = "fleet_mark", "revision"

// here is a header of every answer, by which a client knows that it is talked to by this
// package: OpenStack's Placement has no such path, and says so with a 404 too.
const here = "Berth-Fleet"

// The limits of one request and of one answer. Values are base64 in a commit.
const (
	maxRequest = 4 << 20
	maxAnswer  = 512 << 20
)

type getRequest struct {
	Key string `json:"key"`
}

type listRequest struct {
	Prefix string `json:"prefix"`
}

type commitRequest struct {
	When    []condition `json:"when,omitempty"`
	Changes []change    `json:"changes,omitempty"`
}

type condition struct {
	Key      string `json:"key"`
	Revision uint64 `json:"revision"`
}

type change struct {
	Key   string `json:"key"`
	Value []byte `json:"value"` // null deletes
}

type record struct {
	Key      string `json:"key,omitempty"` // not in the database, where it is the key
	Value    []byte `json:"value"`
	Revision uint64 `json:"revision"`
}

type answer struct {
	Records []record     `json:"records,omitempty"`
	More    bool         `json:"more,omitempty"` // of a page: there are more records after it
	Error   *answerError `json:"error,omitempty"`
	Store   *moment      `json:"store,omitempty"` // of the server when it answered; none of an older version
}
