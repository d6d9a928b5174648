package plugin

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
)

// maxPeeked is how much of a request's body is read before its node gets it.
const maxPeeked = 64 << 10

// Why a body could not be peeked at.
var (
	errBodyEncoded    = errors.New("its body has a content encoding")
	errBodyEmpty      = errors.New("its body is empty")
	errBodyTooLarge   = errors.New("its body is longer than 64 KiB")
	errBodyUnreadable = errors.New("its body could not be read to the end")
)

// peekBody returns the body if it is at most maxPeeked long, or one of the errors above. It leaves a body on the
// request that reads the same, errors included: the length stays, -1 if it is chunked, and Close closes the original.
func (m *Middleware) peekBody(req *http.Request) ([]byte, error) {
	if encoding := strings.Join(req.Header["Content-Encoding"], ","); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return nil, errBodyEncoded
	}
	if req.Body == nil || req.Body == http.NoBody {
		return nil, errBodyEmpty
	}
	// Reading has told a client that waits for "100 Continue" to go on.
	req.Header.Del("Expect")
	prefix, err := io.ReadAll(io.LimitReader(req.Body, maxPeeked+1))
	rest := io.Reader(req.Body)
	if err != nil {
		rest = &failingReader{err: err}
	}
	req.Body = &replayedBody{reader: io.MultiReader(bytes.NewReader(prefix), rest), original: req.Body}
	// Reading to the end of a chunked body brings its trailers, which a node may take for headers.
	m.guarded.strip(req.Trailer)
	switch {
	case err != nil:
		return nil, errBodyUnreadable
	case len(prefix) > maxPeeked:
		return nil, errBodyTooLarge
	}
	return prefix, nil
}

// replayedBody reads from reader and closes original. It names its methods instead of embedding, since
// interpreted structs do not pass embedded ones on to compiled code.
type replayedBody struct {
	reader   io.Reader
	original io.Closer
}

func (b *replayedBody) Read(p []byte) (int, error) { return b.reader.Read(p) }

func (b *replayedBody) Close() error { return b.original.Close() }

// failingReader repeats the error that ended the first reading. Read needs a name for what it ignores: Yaegi puts
// the result of a function with an unnamed parameter in the parameter's place, and panics.
type failingReader struct {
	err error
}

func (r *failingReader) Read(p []byte) (int, error) { return 0, r.err }
