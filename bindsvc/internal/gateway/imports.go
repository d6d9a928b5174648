package gateway

import (
	"context"
	"time"
)

// Import is many bindings made at once, which can be undone at once.
type Import struct {
	ID        int64
	ServiceID string
	NodeID    string // empty: every line names its own
	Source    ImportSource
	State     ImportState
	Run       int64 // raised whenever somebody begins, resumes or undoes it; only the newest run may write
	Actor     string
	Counts    ImportCounts
	Removed   int64 // by the undo
	Kept      int64 // by the undo: changed since the import
	CreatedAt time.Time
	UpdatedAt time.Time
}

// ImportSource says where the users of an import come from.
type ImportSource string

// The sources of an import.
const (
	ImportUsers ImportSource = "users" // the nodes' own user table
	ImportFile  ImportSource = "file"
)

// ImportState is how far an import is.
type ImportState string

// The states of an import. One that was cut off stays RUNNING or UNDOING and can go on.
const (
	ImportRunning ImportState = "RUNNING"
	ImportDone    ImportState = "DONE"
	ImportFailed  ImportState = "FAILED"
	ImportUndoing ImportState = "UNDOING"
	ImportUndone  ImportState = "UNDONE"
)

// ImportCounts says what became of the users that were read.
type ImportCounts struct {
	Read      int64 `json:"read"`
	Bound     int64 `json:"bound"`     // by this import, also before it was cut off
	Unchanged int64 `json:"unchanged"` // bound to that node before
	Skipped   int64 `json:"skipped"`   // not active
	Conflicts int64 `json:"conflicts"`
	Invalid   int64 `json:"invalid"`
}

// ImportRow is one user of an import. It has passed VerifyUserID and VerifyName,
// and no other row of the import has its user id or username key.
type ImportRow struct {
	Line     int64
	UserID   string // UserID or Username is set
	Username string
	NodeID   string
}

// ImportReason is why a user of an import was not bound.
type ImportReason string

// The reasons why a user of an import was not bound.
const (
	BoundElsewhere ImportReason = "BOUND_ELSEWHERE"
	NameTaken      ImportReason = "NAME_TAKEN" // by another user id
	Duplicate      ImportReason = "DUPLICATE"  // in the source
	Invalid        ImportReason = "INVALID"
)

// ImportConflict is a user of an import who was not bound.
type ImportConflict struct {
	ImportRow
	Reason      ImportReason
	BoundNodeID string // of BoundElsewhere
	OtherUserID string // of NameTaken
	Detail      string
}

// ImportBatch is what became of some rows.
type ImportBatch struct {
	Bound     int64
	Unchanged int64
	Conflicts []ImportConflict
}

// UndoBatch is what became of some bindings of an import.
type UndoBatch struct {
	Removed int64
	Kept    int64
	Last    int64 // the binding to go on after
	Done    bool
}

// Imports is the durable record of imports and what carries them out.
type Imports interface {
	// BeginImport stores a new import as RUNNING and returns it with its id.
	BeginImport(ctx context.Context, i Import) (Import, error)

	// ImportByID returns ErrNotFound if there is none.
	ImportByID(ctx context.Context, id int64) (Import, error)

	// ListImports returns a page, the newest first, and how many there are in all.
	ListImports(ctx context.Context, serviceID string, offset, limit int) (page []Import, total int64, err error)

	// ClaimImport begins a new run of an import: claim is given the record and says
	// what becomes of it, or returns an error that ends the claim. From then on the
	// runs before can write nothing more.
	ClaimImport(ctx context.Context, id int64, claim func(*Import) error) (Import, error)

	// SaveImport stores state, counts, removed and kept. DONE and UNDONE are audited.
	// A ConflictError if another run has claimed the import since; so do ImportRows and UndoRows.
	SaveImport(ctx context.Context, i Import) error

	// ImportRows binds those of the rows that have no binding, in one transaction or a
	// few, and leaves every row of the table that exists as it is. It is idempotent: a
	// row that this import has bound counts as bound again. In a dry run (ID 0) nothing
	// is written. A node that does not exist in the service is a ConflictError.
	ImportRows(ctx context.Context, i Import, rows []ImportRow) (ImportBatch, error)

	// UndoRows deletes up to limit bindings that the import made, in the order of their ids
	// from after on; those that have changed since, or whose user has logged in, stay.
	// Each deletion is audited, and counted in the import's Removed.
	UndoRows(ctx context.Context, i Import, after int64, limit int) (UndoBatch, error)
}

// TakenOver is the error of a run whose import another run has claimed.
func (i Import) TakenOver() error {
	return Conflictf("import %d was resumed or undone elsewhere meanwhile", i.ID)
}

// User is a row of the nodes' own user table.
type User struct {
	ID       string
	Username string
	IsAdmin  bool
	Active   bool
}

// Users is the nodes' own user table (sys_user). It is only ever read.
type Users interface {
	// UserByID returns ErrNotFound if there is none.
	UserByID(ctx context.Context, id string) (User, error)

	// CountUsers says about how many there are.
	CountUsers(ctx context.Context) (int64, error)

	// EachUser calls fn for every user in the order of their ids, until fn returns
	// an error, which it returns.
	EachUser(ctx context.Context, fn func(User) error) error
}
