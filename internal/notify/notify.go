// Package notify speaks with the service manager that started the agent: systemd's sd_notify protocol. It tells the
// truth only: ready means that every check has looked, alive means that looks go on. Where there is no service
// manager it is silent, and nothing else differs.
package notify

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// Manager is the service manager, or nobody.
type Manager struct {
	log      *slog.Logger
	watchdog time.Duration // it restarts the agent after so long without a sign of life; 0: it does not wait for any
	send     func(message string) error
}

// New returns the service manager that the environment names (NOTIFY_SOCKET, WATCHDOG_USEC, WATCHDOG_PID), or nobody.
func New(log *slog.Logger) *Manager {
	watchdog, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		log.Error("watchdog of the service manager", "err", err)
	}
	return &Manager{log: log, watchdog: watchdog, send: func(message string) error {
		_, err := daemon.SdNotify(false, message)
		return err
	}}
}

// Ready tells that the agent works, after a start or after a change of its configuration.
func (m *Manager) Ready() { m.tell(daemon.SdNotifyReady) }

// Reloading tells that the configuration is about to change. Ready ends it.
func (m *Manager) Reloading() {
	m.tell(daemon.SdNotifyReloading + "\n" + daemon.SdNotifyMonotonicUsec())
}

// Stopping tells that the agent ends.
func (m *Manager) Stopping() { m.tell(daemon.SdNotifyStopping) }

// Status shows one line of text in "systemctl status".
func (m *Manager) Status(text string) { m.tell("STATUS=" + oneLine(text)) }

// Wait asks for more time to start, again and again until ctx ends, and says why.
func (m *Manager) Wait(ctx context.Context, why string) error {
	const ask = time.Minute
	ticker := time.NewTicker(ask / 4)
	defer ticker.Stop()
	for {
		m.tell(fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d\nSTATUS=%s", ask.Microseconds(), oneLine(why)))
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// Watchdog gives signs of life until ctx ends, for as long as alive returns nil. It is silent while it does not, so
// that the service manager restarts the agent, which begins anew with what it remembers.
func (m *Manager) Watchdog(ctx context.Context, alive func() error) error {
	if m.watchdog <= 0 {
		return nil
	}
	ticker := time.NewTicker(m.watchdog / 4) // two signs may come late before one is missed
	defer ticker.Stop()
	silent := false
	for {
		err := alive()
		if err == nil {
			m.tell(daemon.SdNotifyWatchdog)
		} else if !silent {
			m.log.Error("the agent stands still, the service manager will restart it", "err", err)
		}
		silent = err != nil
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// tell sends a message. That the service manager does not hear is no reason to do anything else: it restarts what it
// does not hear.
func (m *Manager) tell(message string) {
	if err := m.send(message); err != nil {
		m.log.Warn("the service manager cannot be told", "message", message, "err", err)
	}
}

// oneLine keeps text from being taken for several variables.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
