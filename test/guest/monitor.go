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

// serveMonitor runs the commands of the guest: each line on its second serial line is a command for qemu's monitor,
// such as "set_link nic0 off"; the answer is "done", or qemu's error. "stop 30" stops the machine for this many
// seconds. A machine that is restored to a state that it saved by "savevm" waits for the same answer a second time, and
// receives "restored".
func serveMonitor(ctx context.Context, serial, monitor string) error {
	guest, err := dial(ctx, serial)
	if err != nil {
		return ignoreEnd(ctx, err)
	}
	defer guest.Close()
	qemu, err := dial(ctx, monitor)
	if err != nil {
		return ignoreEnd(ctx, err)
	}
	defer qemu.Close()
	defer context.AfterFunc(ctx, func() { guest.Close(); qemu.Close() })()
	answers := bufio.NewReader(qemu)
	if _, err := prompt(answers); err != nil {
		return ignoreEnd(ctx, err)
	}
	lines := bufio.NewScanner(guest)
	for lines.Scan() {
		command, answer := strings.TrimSpace(lines.Text()), "done\n"
		commands := []string{command}
		var pause time.Duration
		if _, err := fmt.Sscanf(command, "stop %d", &pause); err == nil {
			commands = []string{"stop", "cont"}
		}
		if strings.HasPrefix(command, "loadvm ") {
			answer = "restored\n"
		}
		for _, command := range commands {
			if _, err := fmt.Fprintf(qemu, "%s\n", command); err != nil {
				return ignoreEnd(ctx, err)
			}
			output, err := prompt(answers)
			if err != nil {
				return ignoreEnd(ctx, err)
			}
			if _, message, ok := strings.Cut(output, "Error: "); ok {
				message, _, _ = strings.Cut(message, "\r")
				answer = message + "\n"
			}
			if command == "stop" {
				time.Sleep(pause * time.Second)
			}
		}
		if _, err := io.WriteString(guest, answer); err != nil {
			return ignoreEnd(ctx, err)
		}
	}
	return ignoreEnd(ctx, lines.Err())
}

// prompt reads qemu's output until it waits for a command.
func prompt(r *bufio.Reader) (output string, err error) {
	for !strings.HasSuffix(output, "(qemu) ") {
		b, err := r.ReadByte()
		if err != nil {
			return "", err
		}
		output += string(b)
		output = output[max(0, len(output)-4096):]
	}
	return output, nil
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

// ignoreEnd ignores the errors of connections that the end of the guest closes.
func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
		return nil //nolint:nilerr // forgiven
	}
	return err
}
