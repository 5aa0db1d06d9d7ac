package tokens

// Access is what a route asks of a caller. The zero value is none of them: a
// route has to name its own.
type Access uint8

// Levels of access.
const (
	Public Access = iota + 1
	ReadOnly
	WriteOnly
	ReadWrite
	Admin
)

// String is the level as documents write it.
func (a Access) String() string {
	switch a {
	case Public:
		return "public"
	case ReadOnly:
		return "read-only"
	case WriteOnly:
		return "write-only"
	case ReadWrite:
		return "read-write"
	case Admin:
		return "admin"
	default:
		return "none"
	}
}

// Roles is a set of the roles that a token names.
type Roles uint8

// The roles that open anything.
const (
	RoleReadOnly Roles = 1 << iota
	RoleWriteOnly
	RoleReadWrite
	RoleAdmin
)

// Pass reports whether a caller with these roles may use a route of this level.
// Nobody passes a level that is none.
func (r Roles) Pass(a Access) bool {
	switch a {
	case Public:
		return true
	case ReadOnly:
		return r&(RoleReadOnly|RoleReadWrite|RoleAdmin) != 0
	case WriteOnly:
		return r&(RoleWriteOnly|RoleReadWrite|RoleAdmin) != 0
	case ReadWrite:
		return r&(RoleReadWrite|RoleAdmin) != 0
	case Admin:
		return r&RoleAdmin != 0
	default:
		return false
	}
}
