package hand

import (
	"context"
	"os/exec"
	"time"
)

// RunChild runs any command as a child, for as long as limit.
func RunChild(ctx context.Context, d *Hand, limit time.Duration, args ...string) error {
	d.children.limit = limit
	_, err := d.children.run(ctx, &exec.Cmd{Path: args[0], Args: args})
	return err
}

// ParseAttachment is for the fuzz target.
func ParseAttachment(data []byte, name, containerID string) error {
	entry, err := parseAttachment(data, name, containerID)
	if err == nil {
		_, err = networkOf(entry)
	}
	return err
}
