package history

import "fmt"

// Unit is a transaction: its parts are there together or not at all. What is
// read of a part is told with Saw; Settle judges at the end of a reading.
type Unit struct {
	ID   string
	Fate Fate

	known bool
	there bool
	by    string // the part that told first
}

// There reports whether a part of the unit was found.
func (u *Unit) There() bool { return u.there }

// Saw tells that a part of the unit was found, or was looked for and is not there.
func (u *Unit) Saw(part string, there bool) error {
	switch {
	case there && u.Fate == Refused:
		return fmt.Errorf("transaction %s was refused, and %s is there", u.ID, part)
	case !there && u.Fate == Answered:
		return fmt.Errorf("transaction %s was answered, and %s is not there", u.ID, part)
	case u.known && u.there != there:
		return fmt.Errorf("transaction %s is half there: %s: %v, %s: %v", u.ID, u.by, u.there, part, there)
	}
	if !u.known {
		u.known, u.there, u.by = true, there, part
	}
	return nil
}

// Settle turns what was found into the unit's fate.
func (u *Unit) Settle() {
	if u.Fate == Unknown && u.known {
		u.Fate = Refused
		if u.there {
			u.Fate = Answered
		}
	}
}
