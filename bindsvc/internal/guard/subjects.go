package guard

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/homenode/homenode/bindsvc/internal/policy"
	"github.com/homenode/homenode/bindsvc/internal/session"
)

// Sessions knows which user an opaque token belongs to (package session).
type Sessions interface {
	UserByToken(ctx context.Context, serviceID, token string) (string, error)
}

// Directory is a Subjects: it reads JWTs where a policy says so, and asks the sessions
// elsewhere. It is safe for concurrent use.
type Directory struct {
	sessions Sessions
	log      *slog.Logger
	now      func() time.Time

	mu        sync.RWMutex
	verifiers map[string]*verifier // by the id of the identity policy
	running   sync.WaitGroup
}

// verifier is one policy's, with the goroutine that keeps its key set fresh.
type verifier struct {
	config session.JWTConfig
	jwt    *session.JWT
	stop   context.CancelFunc
	isLate bool // the policies of now do not want it; requests that began under earlier ones may
}

// NewDirectory makes a Directory. It reads no JWT before Follow.
func NewDirectory(sessions Sessions, log *slog.Logger, now func() time.Time) *Directory {
	return &Directory{sessions: sessions, log: log, now: now, verifiers: map[string]*verifier{}}
}

var errNoVerifier = errors.New("the policy's keys cannot be used")

// Subject implements Subjects. What has not the form of a JWT is asked of the sessions
// in every mode: where such a token is let pass, it must not be taken for nobody's.
func (d *Directory) Subject(ctx context.Context, serviceID, token string, identity *policy.IdentityRule) (Subject, error) {
	if identity == nil || identity.Mode != policy.ModeJWT || strings.Count(token, ".") != 2 {
		userID, err := d.sessions.UserByToken(ctx, serviceID, token)
		return Subject{UserID: userID}, err
	}
	d.mu.RLock()
	v := d.verifiers[identity.ID]
	d.mu.RUnlock()
	if v == nil {
		return Subject{}, errNoVerifier
	}
	claims, err := v.jwt.Verify(ctx, token)
	if err != nil {
		return Subject{}, err
	}
	return Subject{
		UserID: claims.UserID, Channel: claims.Channel, Source: claims.Source, IssuedAt: claims.IssuedAt, ExpiresAt: claims.ExpiresAt, Signed: true,
	}, nil
}

// Follow takes over what the snapshot says of JWTs. A verifier whose configuration is
// the same stays, with the keys it has fetched. One that is not wanted any more ends with
// the next snapshot: no user may be refused for having asked in between.
func (d *Directory) Follow(snapshot *policy.Snapshot) {
	wanted := snapshot.JWTs()
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, v := range d.verifiers {
		config, isWanted := wanted[id]
		switch {
		case isWanted && reflect.DeepEqual(config, v.config):
			v.isLate = false
		case !isWanted && !v.isLate:
			v.isLate = true
		default:
			v.stop()
			delete(d.verifiers, id)
		}
	}
	for id, config := range wanted {
		if d.verifiers[id] != nil {
			continue
		}
		jwt, err := session.NewJWT(config, d.log, d.now)
		if err != nil {
			d.log.Error("identity policy that cannot be used", "id", id, "error", err)
			continue
		}
		ctx, stop := context.WithCancel(context.Background())
		d.verifiers[id] = &verifier{config: config, jwt: jwt, stop: stop}
		d.running.Go(func() { // ends with Follow or Close
			if err := jwt.Run(ctx); err != nil {
				d.log.Error("key set no longer refreshed", "id", id, "error", err)
			}
		})
	}
}

// Close ends the verifiers.
func (d *Directory) Close() {
	d.mu.Lock()
	for id, v := range d.verifiers {
		v.stop()
		delete(d.verifiers, id)
	}
	d.mu.Unlock()
	d.running.Wait()
}
