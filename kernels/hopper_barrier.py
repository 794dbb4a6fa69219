"""All threads of a program meet: Gluon renamed this between Triton 3.6 and 3.9."""

from triton.experimental.gluon import language as gl

barrier = getattr(gl, "thread_barrier", None) or gl.barrier
