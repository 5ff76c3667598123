package guest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// fulfil does what the guest asks for: each line on its second serial line is a command for qemu's monitor, such as
// "set_link nic0 off", and is answered by "done".
func fulfil(ctx context.Context, wishes, monitor string) error {
	wish, err := dial(ctx, wishes)
	if err != nil {
		return ignoreEnd(ctx, err)
	}
	defer wish.Close()
	qemu, err := dial(ctx, monitor)
	if err != nil {
		return ignoreEnd(ctx, err)
	}
	defer qemu.Close()
	defer context.AfterFunc(ctx, func() { wish.Close(); qemu.Close() })()
	answers := bufio.NewReader(qemu)
	if err := prompt(answers); err != nil {
		return ignoreEnd(ctx, err)
	}
	lines := bufio.NewScanner(wish)
	for lines.Scan() {
		command := strings.TrimSpace(lines.Text())
		if _, err := fmt.Fprintf(qemu, "%s\n", command); err != nil {
			return ignoreEnd(ctx, err)
		}
		if err := prompt(answers); err != nil {
			return ignoreEnd(ctx, err)
		}
		if _, err := io.WriteString(wish, "done\n"); err != nil {
			return ignoreEnd(ctx, err)
		}
	}
	return ignoreEnd(ctx, lines.Err())
}

// prompt reads until qemu waits for a command.
func prompt(r *bufio.Reader) error {
	for seen := ""; !strings.HasSuffix(seen, "(qemu) "); {
		b, err := r.ReadByte()
		if err != nil {
			return err
		}
		seen += string(b)
		seen = seen[max(0, len(seen)-16):]
	}
	return nil
}

// dial waits for a socket of qemu.
func dial(ctx context.Context, path string) (net.Conn, error) {
	for {
		c, err := new(net.Dialer).DialContext(ctx, "unix", path)
		if err == nil {
			return c, nil
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// ignoreEnd forgives what the end of the guest does to its connections.
func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
