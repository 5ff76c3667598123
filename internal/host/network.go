package host

// Network puts made-up answers in the place of what the kernel says of this network namespace. The zero value asks the
// kernel; with a fixture tree in the place of the host's files, what is not made up is not configured.
type Network struct {
	PacketFilter func() (PacketFilter, error)
	Layout       func() (NetworkLayout, error)
}
