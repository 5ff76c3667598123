package filesystem

// Fault is one way in which a filesystem fails.
type Fault struct {
	Reason, Text, Evidence string
	Certain                bool // one observation proves it
}
