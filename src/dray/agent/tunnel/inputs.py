"""What comes out of a stream, written to a descriptor: the peer's window opens by what has been taken there."""

from __future__ import annotations

import asyncio
import os

from dray.wire.streams.mux import Stream

END_OF_INPUT = b"\x04"


class Input:
    """Bytes for a program, kept while there is none yet or it takes no more: a window at most."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._fd = -1
        self._is_terminal = self._writing = self._eof = self._over = False
        self._unwritten = bytearray()

    def begin(self, fd: int, is_terminal: bool) -> None:
        """There it goes. The descriptor of a pipe is closed here, that of a terminal is not."""
        self._fd, self._is_terminal = fd, is_terminal
        self._write()

    def take(self, data: bytes) -> None:
        if self._over:
            # It reads no more, which is not to hold up whoever still sends.
            self._stream.credit(len(data))
            return
        self._unwritten += data
        self._write()

    def end(self) -> None:
        """No more comes: the program reads the end of its input, after what waits."""
        self._eof = True
        self._write()

    def close(self) -> None:
        """Let go of the descriptor."""
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._fd)
        if self._fd >= 0 and not self._is_terminal:
            os.close(self._fd)
        self._fd, self._over = -1, True

    def _write(self) -> None:
        if self._fd < 0:
            return
        if self._eof and self._is_terminal:
            self._unwritten += END_OF_INPUT
            self._eof = False
        try:
            while self._unwritten:
                sent = os.write(self._fd, self._unwritten)
                del self._unwritten[:sent]
                self._stream.credit(sent)
        except BlockingIOError:
            if not self._writing:
                self._writing = True
                self._loop.add_writer(self._fd, self._write)
            return
        except OSError:
            self._stream.credit(len(self._unwritten))
            self._unwritten.clear()
            self.close()
            return
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._fd)
        if self._eof:
            self.close()
