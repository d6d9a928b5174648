package bindrule

import "github.com/homenode/homenode/bindsvc/internal/gateway"

// Existing is the rows of the table that rows of an import meet, by user id and by
// username key.
type Existing struct {
	byUser map[string]Row
	byKey  map[gateway.UsernameKey]Row
}

// Add adds a row of the table.
func (e *Existing) Add(row Row) {
	if e.byUser == nil {
		e.byUser, e.byKey = map[string]Row{}, map[gateway.UsernameKey]Row{}
	}
	if row.UserID != "" {
		e.byUser[row.UserID] = row
	}
	if row.Key != "" {
		e.byKey[row.Key] = row
	}
}

// Sort tells the rows of an import that have to be made from those that exist,
// and adds what becomes of the latter to batch (see gateway.Imports.ImportRows).
func (e *Existing) Sort(importID int64, rows []gateway.ImportRow, batch *gateway.ImportBatch) (absent []gateway.ImportRow) {
	for _, want := range rows {
		row, exists := e.byUser[want.UserID]
		if !exists {
			row, exists = e.byKey[gateway.KeyOf(want.Username)]
		}
		switch {
		case !exists:
			absent = append(absent, want)
		case want.UserID != "" && row.UserID != "" && row.UserID != want.UserID:
			batch.Conflicts = append(batch.Conflicts, gateway.ImportConflict{
				ImportRow: want, Reason: gateway.NameTaken, BoundNodeID: row.NodeID, OtherUserID: row.UserID,
			})
		case row.NodeID != want.NodeID:
			batch.Conflicts = append(batch.Conflicts, gateway.ImportConflict{
				ImportRow: want, Reason: gateway.BoundElsewhere, BoundNodeID: row.NodeID,
			})
		case importID != 0 && row.ImportID == importID:
			batch.Bound++
		default:
			batch.Unchanged++
		}
	}
	return absent
}
