package deliver

import (
	"context"
	"errors"
	"fmt"

	"github.com/nodeagent/nodeagent/pkg/web/control"
)

// Instead of a registration, these keep a name taken.
const (
	adding   = `{"adding":true}`   // the registration follows
	removing = `{"removing":true}` // there may be dead letters
)

// Remove ends a subscription and deletes its cursor and its dead letters.
func (m *Manager) Remove(ctx context.Context, who Who, name string) error {
	taken, err := m.end(ctx, who, name)
	if err != nil {
		return err
	}
	return m.finish(ctx, taken)
}

// end ends a subscription. Its name stays taken until finish.
func (m *Manager) end(ctx context.Context, who Who, name string) (taken control.Record, err error) {
	m.changing.Lock()
	defer m.changing.Unlock()
	s, err := m.find(name)
	if err != nil {
		return taken, err
	}
	if s.configured {
		return taken, fmt.Errorf("%w: subscription %s stands in the settings of the center; pause it", ErrRefused, name)
	}
	if err := m.audit(ctx, who, "remove", name, s.URL); err != nil {
		return taken, err
	}
	record, err := m.Store.Get(ctx, registered, name)
	if err != nil && !errors.Is(err, control.ErrNotFound) {
		return taken, err
	}
	taken = control.Record{Key: name, Value: []byte(removing)}
	if taken.Revision, err = m.Store.Put(ctx, registered, name, taken.Value, record.Revision); err != nil {
		return taken, err
	}
	m.mu.Lock()
	delete(m.subscriptions, name)
	m.mu.Unlock()
	s.saving.Lock() // its state is not written again
	close(s.stop)
	s.saving.Unlock()
	return taken, nil
}

// finish deletes what a removed subscription has left, and then the record that keeps a name taken. There may be a
// thousand dead letters: it holds no lock, and list begins it again after a crash.
func (m *Manager) finish(ctx context.Context, taken control.Record) error {
	if string(taken.Value) == removing {
		letters, err := m.Store.List(ctx, deadLetters, taken.Key+".")
		if err != nil {
			return err
		}
		taken.Revision, err = m.Store.Put(ctx, registered, taken.Key, taken.Value, taken.Revision)
		if errors.Is(err, control.ErrConflict) {
			return nil // finished by somebody else: the letters may be those of a new subscription
		}
		if err != nil {
			return err
		}
		for _, letter := range letters {
			if err := m.discard(ctx, deadLetters, letter); err != nil {
				return err
			}
		}
		if err := m.remove(ctx, cursors, taken.Key); err != nil {
			return err
		}
	}
	return m.discard(ctx, registered, taken)
}

// remove removes a record from the store, if it is there.
func (m *Manager) remove(ctx context.Context, bucket, key string) error {
	record, err := m.Store.Get(ctx, bucket, key)
	if err == nil {
		err = m.Store.Delete(ctx, bucket, key, record.Revision)
	}
	if errors.Is(err, control.ErrNotFound) {
		return nil
	}
	return err
}

// discard removes a record from the store, unless it is gone or was written again.
func (m *Manager) discard(ctx context.Context, bucket string, r control.Record) error {
	err := m.Store.Delete(ctx, bucket, r.Key, r.Revision)
	if errors.Is(err, control.ErrNotFound) || errors.Is(err, control.ErrConflict) {
		return nil
	}
	return err
}
