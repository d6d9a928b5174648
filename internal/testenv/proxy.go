package testenv

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Proxy passes TCP connections on to a server, and can slow them down or cut them.
type Proxy struct {
	target   string
	listener net.Listener
	delay    atomic.Int64 // nanoseconds, per chunk and direction

	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]struct{}
	done  sync.WaitGroup
}

// NewProxy listens on a free loopback port and passes on to target (host:port).
func NewProxy(target string) (*Proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{target: target, listener: listener, conns: map[net.Conn]struct{}{}}
	p.done.Go(p.accept)
	return p, nil
}

// Addr is what clients connect to.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// SetDelay makes every chunk from the server, an answer, wait so long; zero ends it.
func (p *Proxy) SetDelay(delay time.Duration) { p.delay.Store(int64(delay)) }

// Cut closes all connections and refuses new ones until Restore.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = true
	for conn := range p.conns {
		_ = conn.Close()
	}
}

// Restore ends a Cut.
func (p *Proxy) Restore() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = false
}

// Close ends the proxy and its connections.
func (p *Proxy) Close() error {
	p.Cut()
	err := p.listener.Close()
	p.done.Wait()
	return err
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.done.Go(func() { p.serve(client) })
	}
}

func (p *Proxy) serve(client net.Conn) {
	defer p.drop(client)
	if !p.keep(client) {
		return
	}
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	defer p.drop(server)
	if !p.keep(server) {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { p.pass(server, client, func() time.Duration { return 0 }) })
	both.Go(func() { p.pass(client, server, func() time.Duration { return time.Duration(p.delay.Load()) }) })
	both.Wait()
}

// keep registers a connection for Cut, unless the proxy is cut.
func (p *Proxy) keep(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.cut {
		p.conns[conn] = struct{}{}
	}
	return !p.cut
}

func (p *Proxy) drop(conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, conn)
	_ = conn.Close()
}

// pass copies chunk by chunk until one side ends, then ends both: neither
// PostgreSQL nor Redis uses half-closed connections.
func (p *Proxy) pass(to, from net.Conn, delay func() time.Duration) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			time.Sleep(delay())
			if _, writeErr := to.Write(buffer[:n]); writeErr != nil {
				err = errors.Join(err, writeErr)
			}
		}
		if err != nil {
			_ = to.Close()
			_ = from.Close()
			return
		}
	}
}
