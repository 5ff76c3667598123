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
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.ending, name)
	}()
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
	taken, err = m.stored(ctx, registered, name)
	if err != nil {
		return taken, err
	}
	taken.Value = []byte(removing)
	if taken.Revision, err = m.Store.Put(ctx, registered, name, taken.Value, taken.Revision); err != nil {
		return taken, err // if it was written nevertheless, load ends the subscription
	}
	m.mu.Lock()
	m.ending[name] = true
	m.mu.Unlock()
	m.halt(s)
	return taken, nil
}

// halt stops a subscription. Its state is not written again.
func (m *Manager) halt(s *subscription) {
	m.mu.Lock()
	delete(m.subscriptions, s.Name)
	m.mu.Unlock()
	s.saving.Lock()
	defer s.saving.Unlock()
	close(s.stop)
}

// finish deletes what a removed subscription has left, and then the record that keeps a name taken. There may be a
// thousand dead letters: it holds no lock, and list begins it again after a crash.
func (m *Manager) finish(ctx context.Context, taken control.Record) error {
	if string(taken.Value) == removing {
		letters, err := m.Store.List(ctx, deadLetters, taken.Key+".")
		if err != nil {
			return err
		}
		position, err := m.stored(ctx, cursors, taken.Key)
		if err != nil {
			return err
		}
		taken.Revision, err = m.Store.Put(ctx, registered, taken.Key, taken.Value, taken.Revision)
		if errors.Is(err, control.ErrConflict) {
			return nil // finished by somebody else: the letters and the position may be those of a new subscription
		}
		if err != nil {
			return err
		}
		for _, letter := range letters {
			if err := m.discard(ctx, deadLetters, letter); err != nil {
				return err
			}
		}
		// After a conflict list begins it again: the last position may have been written late.
		err = m.Store.Delete(ctx, cursors, position.Key, position.Revision)
		if position.Revision > 0 && err != nil && !errors.Is(err, control.ErrNotFound) {
			return err
		}
	}
	return m.discard(ctx, registered, taken)
}

// stored returns a record of the store, with revision 0 if there is none.
func (m *Manager) stored(ctx context.Context, bucket, key string) (control.Record, error) {
	record, err := m.Store.Get(ctx, bucket, key)
	if errors.Is(err, control.ErrNotFound) {
		return control.Record{Key: key}, nil
	}
	return record, err
}

// discard removes a record from the store, unless it is gone or was written again.
func (m *Manager) discard(ctx context.Context, bucket string, r control.Record) error {
	err := m.Store.Delete(ctx, bucket, r.Key, r.Revision)
	if errors.Is(err, control.ErrNotFound) || errors.Is(err, control.ErrConflict) {
		return nil
	}
	return err
}
