package status

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// The reasons why the running agent did not answer.
var (
	ErrNotRunning = errors.New("no agent is running")
	ErrNotAllowed = errors.New("only root may query the running agent")
	ErrSilent     = errors.New("the agent does not answer")
)

// askLimit bounds an answer. The agent answers from memory, which takes milliseconds.
const askLimit = 3 * time.Second

// AskStatus asks the running agent for its status.
func AskStatus(ctx context.Context, socket string) (Status, error) {
	var status Status
	return status, ask(ctx, socket, http.MethodGet, "/status", &status)
}

// AskReload makes the running agent reload its configuration. ErrRefused: the previous one stays in force.
func AskReload(ctx context.Context, socket string) error {
	var none struct{}
	return ask(ctx, socket, http.MethodPost, "/reload", &none)
}

// AskHistory asks the running agent for the history of its inspections.
func AskHistory(ctx context.Context, socket string) (object.History, error) {
	var history object.History
	return history, ask(ctx, socket, http.MethodGet, "/history", &history)
}

// pathsLimit is how long a user waits for a hanging agent before the command uses only the host's own files.
const pathsLimit = 500 * time.Millisecond

// AskContainerPaths asks the running agent for its container's paths. If it does not answer, all are empty and the
// caller uses the host's own files only.
func AskContainerPaths(ctx context.Context, socket string) ContainerPaths {
	ctx, cancel := context.WithTimeout(ctx, pathsLimit)
	defer cancel()
	var paths ContainerPaths
	if err := ask(ctx, socket, http.MethodGet, "/paths", &paths); err != nil {
		return ContainerPaths{}
	}
	return paths
}

// ask sends a request to the socket of the running agent and decodes its answer. ErrNotRunning: no process listens.
func ask(ctx context.Context, socket, method, path string, answer any) error {
	limit := askLimit
	if method != http.MethodGet {
		limit = ReloadLimit + time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	owner := 0 // of the socket
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
			if err == nil {
				owner = listener(conn)
			}
			return conn, err
		},
	}}
	request, err := http.NewRequestWithContext(ctx, method, "http://agent"+path, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return noAnswer(ctx, socket, owner, limit, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return refusal(socket, response)
	}
	if err := json.NewDecoder(http.MaxBytesReader(nil, response.Body, 64<<20)).Decode(answer); err != nil {
		if ctx.Err() != nil {
			return noAnswer(ctx, socket, owner, limit, err)
		}
		return fmt.Errorf("answer of the agent on %s: %w", socket, err)
	}
	return nil
}

// refusal returns the error for an answer with a status other than 200.
func refusal(socket string, response *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(response.Body, 1<<16)) // part of an explanation is better than none
	why := strings.TrimSpace(string(text))
	if response.StatusCode == http.StatusUnprocessableEntity {
		return fmt.Errorf("%w: %s", ErrRefused, strings.TrimPrefix(why, ErrRefused.Error()+": "))
	}
	return fmt.Errorf("ask the agent on %s: %s: %s", socket, response.Status, why)
}

// noAnswer returns the reason for a missing answer.
func noAnswer(ctx context.Context, socket string, owner int, limit time.Duration, err error) error {
	op, dialled := errors.AsType[*net.OpError](err)
	dialled = dialled && op.Op == "dial"
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: %s: permission denied", ErrNotAllowed, socket)
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w: %s: %w", ErrNotRunning, socket, op.Err)
	case ctx.Err() != nil || dialled: // also with a full accept queue
		return fmt.Errorf("%w on %s within %s%s", ErrSilent, socket, limit, stateOf(owner))
	}
	return fmt.Errorf("ask the agent on %s: %w", socket, err)
}

// listener returns the process that listens at the other end (SO_PEERCRED, unix(7)), or 0 if unknown.
func listener(conn net.Conn) (pid int) {
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		if peer, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(peer.Pid)
		}
	})
	return pid
}

// stateOf describes a process that does not answer, from proc_pid_stat(5): "123 (nodeagent) T 1 …".
func stateOf(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if pid == 0 || err != nil {
		return ""
	}
	_, after, _ := strings.Cut(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " ")
	switch state, _, _ := strings.Cut(after, " "); state {
	case "T", "t":
		return fmt.Sprintf(": process %d is stopped by a signal or a debugger, kill -CONT %d continues it", pid, pid)
	case "D":
		return fmt.Sprintf(": process %d hangs in the kernel", pid)
	}
	return fmt.Sprintf(": process %d runs; systemctl restart nodeagent restarts it", pid)
}
