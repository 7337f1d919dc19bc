package audit

// The codes of rows.
const (
	CodeAgree             = "agree"
	CodeNotManaged        = "not_managed"          // a stopped domain that nobody manages
	CodeCreating          = "creating"             // a guest that is made, or has just arrived
	CodeMoving            = "moving"               // as a move has it at some moment
	CodeMovingMissing     = "moving_missing"       // a move's instance is nowhere in Placement
	CodeMovingDiffers     = "moving_differs"       // a move's consumer as no step of a move leaves it
	CodeKeptUndefined     = "kept_undefined"       // what a guest would go back to has no definition any more
	CodeUnconfirmedGone   = "unconfirmed_gone"     // libvirt has no domain of a guest that waits to be confirmed
	CodeHalfLeft          = "half_left"            // held of a guest that was confirmed where it is, by a move that nobody knows
	CodeUnconducted       = "unconducted"          // held for a move that nobody conducts
	CodeHalvesMissing     = "halves_missing"       // Placement has lost both halves of a move
	CodePlacementUnknown  = "placement_unknown"    // Placement does not answer
	CodeLibvirtUnknown    = "libvirt_unknown"      // libvirt does not answer
	CodeMissing           = "allocation_missing"   // a guest that Placement does not count
	CodeAmounts           = "allocation_amounts"   // counted otherwise than claimed
	CodeMisplaced         = "allocation_place"     // counted on another provider of the tree
	CodeElsewhere         = "allocation_elsewhere" // a guest of this host, counted at another
	CodeDoubled           = "allocation_doubled"   // counted here and at another host
	CodeTwoOwners         = "two_owners"           // another host says that it owns a guest of this one
	CodeGuestGone         = "guest_gone"           // claimed, and libvirt has no such domain
	CodeClaimMissing      = "claim_missing"        // this host's guest, without a claim
	CodeRecordOnly        = "record_only"          // this host's guest, without claim and domain
	CodeClaimHeld         = "claim_held"           // held by a move that nobody knows
	CodeClaimWithoutOwner = "claim_without_owner"  // bound, and no record of the instance
	CodeInTransit         = "token_in_transit"     // given away, and no move knows of it
	CodeRunsUnowned       = "runs_unowned"         // runs here though its token is elsewhere
	CodeClaimLeft         = "claim_left"           // left, and its claim has not gone yet
	CodeLeftBehind        = "left_behind"          // left, and still counted here
	CodeUnmanaged         = "unmanaged"            // runs here, and nobody manages it
	CodeUnmanagedCounted  = "unmanaged_counted"    // the same, or off, and somebody counts it
	CodeMigrationLeft     = "migration_leftover"   // the consumer of a move that is over
	CodeStranger          = "stranger"             // counted here, and nobody here knows it
	CodeStrangerMove      = "stranger_migration"   // the same, of type MIGRATION
	CodeOverCapacity      = "over_capacity"        // a provider of which more is allocated than it gives
	CodeNoInventory       = "no_inventory"         // allocated of a class that the provider has no more
)

// rule is a row of the table. A set of zero is any fact.
type rule struct {
	when Facts
	then Judgement
}

func (r rule) matches(f Facts) bool {
	w := r.when
	return (w.Token == 0 || w.Token&f.Token != 0) && (w.Claim == 0 || w.Claim&f.Claim != 0) &&
		(w.Domain == 0 || w.Domain&f.Domain != 0) && (w.Allocation == 0 || w.Allocation&f.Allocation != 0) &&
		(w.Story == 0 || w.Story&f.Story != 0) && (w.Type == 0 || w.Type&f.Type != 0) && (w.Fleet == 0 || w.Fleet&f.Fleet != 0)
}

// Decide finds the first rule that matches. Every combination of facts has one: a
// test enumerates them.
func Decide(f Facts) (Judgement, bool) {
	for _, r := range rules {
		if r.matches(f) {
			return r.then, true
		}
	}
	return Judgement{}, false
}

const (
	none  = TokenNone
	here  = TokenHere
	bound = ClaimBound
	early = ClaimPending | ClaimArriving

	equal     = AllocationEqual
	doubled   = AllocationDoubled
	elsewhere = AllocationElsewhere
)

// rules is the table. The first that matches decides, so that a rule speaks of what
// those before it have left.
var rules = []rule{
	// Nobody manages it: libvirt alone is enough to say so.
	{Facts{Token: none, Claim: ClaimNone, Domain: DomainRunning, Allocation: notHere | AllocationUnknown}, Judgement{LibvirtOnly, CodeUnmanaged, HealNone}},

	// No verdict without Placement.
	{Facts{Allocation: AllocationUnknown}, Judgement{Unknown, CodePlacementUnknown, HealNone}},

	// Moves. Between two writes of its conductor the instance is here or there, and
	// the migration's consumer is there or not; any other state is the conductor's to
	// put right, too, and looked at again when the move is over.
	{Facts{Story: StoryLost, Token: TokenTransit, Fleet: FleetOwner}, Judgement{LedgerOnly, CodeHalfLeft, HealNone}},
	{Facts{Story: StoryLost, Token: here | TokenTransit}, Judgement{LedgerOnly, CodeUnconducted, HealNone}},
	{Facts{Story: StoryWaits, Token: TokenTransit, Claim: ClaimHeld, Domain: DomainGone}, Judgement{LedgerOnly, CodeKeptUndefined, HealNone}},
	{Facts{Story: StoryWaits, Token: here, Domain: DomainGone}, Judgement{LedgerOnly, CodeUnconfirmedGone, HealNone}},
	{Facts{Story: StoryKept, Allocation: AllocationNone}, Judgement{LedgerOnly, CodeHalvesMissing, HealHalves}},
	{Facts{Story: moving, Token: here | TokenTransit, Allocation: AllocationNone}, Judgement{LedgerOnly, CodeMovingMissing, HealNone}},
	{Facts{Story: moving, Claim: early | bound | ClaimHeld, Allocation: AllocationNone}, Judgement{LedgerOnly, CodeMovingMissing, HealNone}},
	{Facts{Story: moving, Allocation: notHere | equal}, Judgement{Agree, CodeMoving, HealNone}},
	{Facts{Story: moving}, Judgement{Differs, CodeMovingDiffers, HealNone}},

	// A token that no move has: an operator's word is needed.
	{Facts{Token: TokenTransit}, Judgement{LedgerOnly, CodeInTransit, HealNone}},

	// Guests that are being made, or have arrived and are not bound yet.
	{Facts{Claim: early, Token: none | here, Allocation: notHere | equal}, Judgement{Agree, CodeCreating, HealNone}},
	{Facts{Claim: early, Token: none | here}, Judgement{Differs, CodeCreating, HealNone}},

	// This host's guests. The claim is the truth, also while libvirt is silent: no
	// write here makes it smaller.
	{Facts{Token: here, Claim: bound | ClaimHeld, Domain: DomainGone}, Judgement{LedgerOnly, CodeGuestGone, HealNone}},
	{Facts{Token: here, Claim: bound | ClaimHeld, Allocation: equal}, Judgement{Agree, CodeAgree, HealNone}},
	{Facts{Token: here, Claim: ClaimHeld}, Judgement{Differs, CodeClaimHeld, HealNone}},
	{Facts{Token: here, Claim: bound, Allocation: AllocationNone}, Judgement{LedgerOnly, CodeMissing, HealPut}},
	{Facts{Token: here, Claim: bound, Allocation: AllocationAmounts}, Judgement{Differs, CodeAmounts, HealPut}},
	{Facts{Token: here, Claim: bound, Allocation: AllocationMisplaced}, Judgement{Differs, CodeMisplaced, HealPut}},
	{Facts{Token: here, Claim: bound, Fleet: FleetOwner}, Judgement{Differs, CodeTwoOwners, HealNone}},
	{Facts{Token: here, Claim: bound, Allocation: doubled, Fleet: FleetNobody}, Judgement{Differs, CodeDoubled, HealTake}},
	{Facts{Token: here, Claim: bound, Allocation: elsewhere, Fleet: FleetNobody}, Judgement{Differs, CodeElsewhere, HealTake}},
	{Facts{Token: here, Claim: bound, Allocation: doubled}, Judgement{Differs, CodeDoubled, HealNone}},
	{Facts{Token: here, Claim: bound, Allocation: elsewhere}, Judgement{Differs, CodeElsewhere, HealNone}},
	{Facts{Token: here, Claim: ClaimNone, Domain: DomainGone}, Judgement{LedgerOnly, CodeRecordOnly, HealNone}},
	{Facts{Token: here, Claim: ClaimNone, Domain: DomainUnknown}, Judgement{Unknown, CodeLibvirtUnknown, HealNone}},
	{Facts{Token: here, Claim: ClaimNone}, Judgement{LibvirtOnly, CodeClaimMissing, HealNone}},

	// Guests that have left. Their part of this host goes once nothing here uses it,
	// and it is certain that somebody has the guest.
	{Facts{Token: TokenElsewhere, Domain: DomainRunning}, Judgement{Differs, CodeRunsUnowned, HealNone}},
	{Facts{Token: TokenElsewhere, Claim: ClaimNone, Allocation: notHere}, Judgement{Agree, CodeAgree, HealNone}},
	{Facts{Token: TokenElsewhere, Domain: DomainUnknown}, Judgement{Unknown, CodeLibvirtUnknown, HealNone}},
	{Facts{Token: TokenElsewhere, Claim: early | bound | ClaimHeld}, Judgement{LedgerOnly, CodeClaimLeft, HealNone}},
	{Facts{Token: TokenElsewhere, Fleet: FleetBusy | FleetMoving}, Judgement{PlacementOnly, CodeLeftBehind, HealNone}},
	{Facts{Token: TokenElsewhere, Fleet: FleetOwner}, Judgement{PlacementOnly, CodeLeftBehind, HealDrop}},
	{Facts{Token: TokenElsewhere, Allocation: doubled, Story: StoryOver}, Judgement{PlacementOnly, CodeLeftBehind, HealDrop}},
	{Facts{Token: TokenElsewhere}, Judgement{PlacementOnly, CodeLeftBehind, HealNone}},

	// Nobody here knows the instance.
	{Facts{Token: none, Claim: bound | ClaimHeld}, Judgement{LedgerOnly, CodeClaimWithoutOwner, HealNone}},
	{Facts{Token: none, Domain: DomainRunning}, Judgement{LibvirtOnly, CodeUnmanagedCounted, HealNone}},
	{Facts{Token: none, Domain: DomainOff, Allocation: notHere}, Judgement{Agree, CodeNotManaged, HealNone}},
	{Facts{Token: none, Domain: DomainOff}, Judgement{LibvirtOnly, CodeUnmanagedCounted, HealNone}},
	{Facts{Token: none, Allocation: notHere}, Judgement{Agree, CodeAgree, HealNone}},
	// Another host knows its move: what it holds here goes with that, or comes.
	{Facts{Token: none, Domain: DomainGone, Story: StoryNone, Fleet: FleetMoving}, Judgement{Agree, CodeMoving, HealNone}},
	// It is a move's uuid, and no guest's, by this host's own journal.
	{Facts{Token: none, Allocation: allocatedHere, Story: StoryOver, Type: TypeMigration | TypeUnknown, Fleet: FleetUnasked | FleetSilent | FleetNobody}, Judgement{PlacementOnly, CodeMigrationLeft, HealDelete}},
	{Facts{Token: none, Domain: DomainUnknown}, Judgement{Unknown, CodeLibvirtUnknown, HealNone}},
	{Facts{Token: none, Allocation: allocatedHere, Story: StoryOver, Fleet: FleetNobody}, Judgement{PlacementOnly, CodeMigrationLeft, HealDelete}},
	{Facts{Token: none, Type: TypeMigration}, Judgement{PlacementOnly, CodeStrangerMove, HealNone}},
	{Facts{Token: none, Story: StoryNone, Fleet: FleetOwner}, Judgement{PlacementOnly, CodeLeftBehind, HealDrop}},
	{Facts{Token: none}, Judgement{PlacementOnly, CodeStranger, HealNone}},
}
