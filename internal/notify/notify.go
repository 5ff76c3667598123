// Package notify reports to the service manager that started the agent (systemd's sd_notify protocol), and proves that
// the agent makes progress. It reports only proven states: ready means that every check has run once, alive means that
// checks continue to run. Without a service manager it sends no messages, and everything else works the same.
package notify

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// Manager is the service manager, or none.
type Manager struct {
	log      *slog.Logger
	watchdog time.Duration // it restarts the agent after this time without a keep-alive; 0: it expects none
	send     func(message string) error
}

// New returns the service manager in the environment (NOTIFY_SOCKET, WATCHDOG_USEC, WATCHDOG_PID), or none.
func New(log *slog.Logger) *Manager {
	watchdog, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		log.Error("read the watchdog of the service manager failed", "err", err)
	}
	return &Manager{log: log, watchdog: watchdog, send: func(message string) error {
		_, err := daemon.SdNotify(false, message)
		return err
	}}
}

// Ready reports that the agent works, after a start or after a change of its configuration.
func (m *Manager) Ready() { m.notify(daemon.SdNotifyReady) }

// Reloading reports that the configuration is about to change. Ready ends it.
func (m *Manager) Reloading() {
	m.notify(daemon.SdNotifyReloading + "\n" + daemon.SdNotifyMonotonicUsec())
}

// Stopping reports that the agent ends.
func (m *Manager) Stopping() { m.notify(daemon.SdNotifyStopping) }

// Status shows one line of text in "systemctl status".
func (m *Manager) Status(text string) { m.notify("STATUS=" + oneLine(text)) }

// Wait keeps asking for more time to start until ctx ends, and shows the reason.
func (m *Manager) Wait(ctx context.Context, why string) error {
	const extension = time.Minute
	ticker := time.NewTicker(extension / 4)
	defer ticker.Stop()
	for {
		m.notify(fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d\nSTATUS=%s", extension.Microseconds(), oneLine(why)))
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// Watchdog sends keep-alives until ctx ends, while alive returns nil. It sends none while alive fails, so that the
// service manager restarts the agent, which continues with its saved state.
func (m *Manager) Watchdog(ctx context.Context, alive func() error) error {
	if m.watchdog <= 0 {
		return nil
	}
	ticker := time.NewTicker(m.watchdog / 4) // two may come late before one is missed
	defer ticker.Stop()
	silent := false
	for {
		err := alive()
		if err == nil {
			m.notify(daemon.SdNotifyWatchdog)
		} else if !silent {
			m.log.Error("the agent makes no progress: the service manager will restart it", "err", err)
		}
		silent = err != nil
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// notify sends a message. A failure needs no reaction: the service manager restarts an agent whose messages do not
// arrive.
func (m *Manager) notify(message string) {
	if err := m.send(message); err != nil {
		m.log.Warn("notify the service manager failed", "message", message, "err", err)
	}
}

// oneLine keeps the protocol from reading a text as several variables.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
