package claims

import (
	"berth/topology"
	"context"
)

func Open(ctx context.Context, o Options) (*Tracker, error)            { return &Tracker{}, nil }
func (t *Tracker) Run(ctx context.Context) error                       { return nil }
func (t *Tracker) Expire(ctx context.Context) ([]Claim, error)         { return nil, nil }
func (t *Tracker) Refuse(reason string)                                {}
func (t *Tracker) Allow()                                              {}
func (t *Tracker) SetCapacity(c Capacity)                              {}
func (t *Tracker) Usage() Usage                                        { return Usage{} }
func (t *Tracker) List() []Claim                                       { return nil }
func (t *Tracker) Get(id string) (Claim, bool)                         { return Claim{}, false }
func (t *Tracker) ByOwner(o Owner) (Claim, bool)                       { return Claim{}, false }
func (t *Tracker) ByInstance(uuid string) []Claim                      { return nil }
func (t *Tracker) ByMigration(uuid string) []Claim                     { return nil }
func (t *Tracker) Check(r topology.Resources) error                    { return nil }
func (t *Tracker) Claim(ctx context.Context, r Request) (Claim, error) { return Claim{}, nil }
func (t *Tracker) Renew(ctx context.Context, o Owner) (Claim, error)   { return Claim{}, nil }
func (t *Tracker) Arrive(ctx context.Context, o Owner) (Claim, error)  { return Claim{}, nil }
func (t *Tracker) Bind(ctx context.Context, o Owner) (Claim, error)    { return Claim{}, nil }
func (t *Tracker) Hold(ctx context.Context, o Owner) (Claim, error)    { return Claim{}, nil }
func (t *Tracker) Abort(ctx context.Context, ref Ref) error            { return nil }
func (t *Tracker) Release(ctx context.Context, o Owner) error          { return nil }
func (t *Tracker) Adopt(ctx context.Context, i Instance, r topology.Resources) (Claim, error) {
	return Claim{}, nil
}
func (t *Tracker) Own(ctx context.Context, i Instance) (Instance, error)         { return i, nil }
func (t *Tracker) PutInstance(ctx context.Context, i Instance) (Instance, error) { return i, nil }
func (t *Tracker) DeleteInstance(ctx context.Context, uuid string) error         { return nil }
func (t *Tracker) Instance(uuid string) (Instance, bool)                         { return Instance{}, false }
func (t *Tracker) InstanceByName(name string) (Instance, bool)                   { return Instance{}, false }
func (t *Tracker) Instances() []Instance                                         { return nil }
func (t *Tracker) Surrender(ctx context.Context, ref Ref, to string) (Commit, error) {
	return Commit{}, nil
}
func (t *Tracker) RefuseCommit(ctx context.Context, ref Ref) error                      { return nil }
func (t *Tracker) Committed(migration string) (Commit, bool)                            { return Commit{}, false }
func (t *Tracker) CommitRefused(migration string, attempt int) bool                     { return false }
func (t *Tracker) AcceptToken(ctx context.Context, c Commit, i Instance) error          { return nil }
func (t *Tracker) Forget(ctx context.Context, uuid string) error                        { return nil }
func (t *Tracker) RecordContext(ctx context.Context, ref Ref, c MigrationContext) error { return nil }
func (t *Tracker) DropContext(ctx context.Context, ref Ref) error                       { return nil }
func (t *Tracker) Context(migration string) (MigrationContext, bool) {
	return MigrationContext{}, false
}
func (t *Tracker) Contexts() []MigrationContext                                { return nil }
func (t *Tracker) Bury(ctx context.Context, ref Ref) error                     { return nil }
func (t *Tracker) Buried(ref Ref) bool                                         { return false }
func (t *Tracker) Remember(ctx context.Context, ref Ref, v any) error          { return nil }
func (t *Tracker) Recall(ref Ref, v any) (bool, error)                         { return false, nil }
func (t *Tracker) Unremember(ctx context.Context, ref Ref) error               { return nil }
func (t *Tracker) ForgetMigration(ctx context.Context, migration string) error { return nil }
func (c Claim) Redacted() Claim                                                { return c }
