// Package store is one bbolt file for the ledger of claims and the journal of
// migrations of one host.
//
// It is for claims and migration/task to be durable with. It reads and alone
// writes the file it is given, berth.db in the state directory, and berth.db.latest beside it; it knows
// records by bucket and key, never what is in them, and imports nothing of this
// module save internal/fault.
//
// # Schema 1
//
//	berth.db
//	├── meta                      the store's own
//	│   ├── application           "berth": tells a foreign bbolt file
//	│   ├── schema                "1"
//	│   ├── records               how many records all other buckets hold
//	│   ├── digest                the sum of their seals, hexadecimal
//	│   └── life                  a random word; berth.db.latest names it (see latest.go)
//	├── claims                    package claims: the ledger
//	│   └── <claim uuid>          Claim
//	├── instances
//	│   └── <instance uuid>       Instance with its ownership Token
//	├── copies
//	│   └── <instance uuid>       the hidden Copy of an instance that a migration brings here
//	├── halves
//	│   └── <migration uuid>      what this host remembers of a migration: its
//	│                             MigrationContext as source, the commit or up to
//	│                             which attempt it is refused, tombstones
//	├── verbs
//	│   └── <migration>/<attempt>/<step>   what a host verb made or answered
//	├── migrations                package migration: the conductor's records
//	│   └── <migration uuid>      the record and what was asked
//	├── aborts
//	│   └── <migration uuid>      an abort was asked for in time
//	├── words
//	│   └── <migration uuid>      an operator's word on a move of another host's guest
//	├── tasks                     package migration/task: the journal
//	│   └── <migration uuid>/<attempt>
//	├── drains                    package migration/drain
//	│   ├── <drain uuid>          what was asked, by whom, how far it is
//	│   └── <drain uuid>/<instance uuid>   how far one guest is
//	└── agent                     package agent: what it must know at its next start
//
// Values are JSON, each followed by its seal: eight bytes, FNV-1a of bucket, key
// and value. A bucket is made by the first write to it. A change of this tree
// that an older program could not read raises the schema and adds a row to
// upgrades; a database of every released schema is kept under testdata and
// opened by a test.
//
// # Invariants
//
//   - One process at a time: the file is locked (flock) while it is open.
//   - A mutation is durable before anybody is told so, and before Get or List
//     show it. All mutations of one Enqueue are one atomic step, and steps are
//     committed in the order in which they were enqueued.
//   - Many steps share one transaction and its fsync.
//   - While the disk is full what gives back is written all the same: behind its
//     last page the file has a reserve of blocks, and Room refuses who would take.
//   - A file that is cut, garbled, foreign or newer than the program is an error
//     that names it, and is not changed; it is never an empty database. Every
//     page is walked and every record held against its seal and the digest
//     before bbolt, which trusts its file, maps it.
//   - A backup that takes the file's place is told from it (DB.Older), and a file that
//     is replaced while it is open takes nothing more.
//
// # Damage
//
// Of a file that Open refuses, Salvage reads what is left, record by record: what it
// gives is what the last commit said, and what it lacks is not known. SetAside keeps
// the file under a name with the date and puts a new database in its place, in one
// rename, so that a crash leaves the one or the other. What follows from it is the
// callers' to say: a ledger that lost a record is joined with what others know.
package store

// BucketAgent has what the parts of package agent must know at the next start.
const BucketAgent = "agent"
